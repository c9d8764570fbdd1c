"""Reads from a transformers model what the embedded engine needs: packed weights, rotary tables, whether it can.

Invariants:
- Query, key and value projections become one matrix, as do gate and up; everything else is shared, not copied.
- An MLP takes and gives [rows, hidden], where rows are a multiple of `ROW_MULTIPLE`; it changes nothing in place.
- In a mixture every row passes the experts that its router chooses, as in transformers' Qwen3-MoE. A row's result does
  not depend on the other rows: an expert multiplies at least `ROW_MULTIPLE` rows, and a row's experts are added in the
  order of their numbers.
- A model that the forward pass would compute wrongly is refused with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.engine.engine import EngineError

# The matrix library sums few rows in another order than many, and a row's bits would depend on its company. From how
# many rows on it does not, depends on processor and shape. The most that we saw is 16, on one processor and for the
# second projection of the tiny model's MLP (384 to 128). tests/engine/test_engine_embedded_model.py tries the shapes of
# the shipped models on the processor at hand.
ROW_MULTIPLE = 16
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class DecoderShape:
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float

    @property
    def group(self) -> int:
        """The number of query heads per key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class PackedMlp:
    gate_up: torch.Tensor
    down: torch.Tensor
    act: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(rows, self.gate_up).chunk(2, dim=-1)
        return functional.linear(self.act(gate).mul_(up), self.down)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The experts of a layer: `router` [experts, hidden], `gate_up` [experts, 2 * inner, hidden], `down`.

    `down` is [experts, hidden, inner].
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    # Each row passes this many experts.
    active: int
    # The weights of a row's experts sum to 1 then.
    normalised: bool
    act: Callable[[torch.Tensor], torch.Tensor]

    def routed(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the numbers of each row's experts, and their weights: [rows, active] both."""
        shares = torch.softmax(functional.linear(rows, self.router), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(shares, self.active, dim=-1)
        return chosen, weights / weights.sum(dim=-1, keepdim=True) if self.normalised else weights

    def __call__(self, rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        mixed = torch.zeros_like(rows)
        for expert in torch.unique(chosen).tolist():
            at, place = torch.where(chosen == expert)
            gate, up = functional.linear(pad_rows(rows[at]), self.gate_up[expert]).chunk(2, dim=-1)
            share = functional.linear(self.act(gate).mul_(up), self.down[expert])[: len(at)]
            mixed.index_add_(0, at, share * weights[at, place, None])
        return mixed


def pack_experts(block: Any) -> PackedExperts:
    """Returns the experts of a `Qwen3MoeSparseMoeBlock`; nothing is copied."""
    gate = block.gate
    experts = block.experts
    return PackedExperts(
        router=gate.weight,
        gate_up=experts.gate_up_proj,
        down=experts.down_proj,
        active=gate.top_k,
        normalised=gate.norm_topk_prob,
        act=experts.act_fn,
    )


def pad_rows(rows: torch.Tensor) -> torch.Tensor:
    """Returns the rows with rows of zeros behind them, up to a multiple of `ROW_MULTIPLE`."""
    missing = -rows.shape[0] % ROW_MULTIPLE
    if missing:
        return functional.pad(rows, (0, 0, 0, missing))
    return rows


@dataclass(frozen=True, slots=True)
class PackedLayer:
    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    # Its shape is [heads + kv_heads, head_dim].
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    mlp: PackedMlp | PackedExperts


def shape_of(config: Any) -> DecoderShape:
    heads: int = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return DecoderShape(heads, config.num_key_value_heads, head_dim, config.vocab_size, config.rms_norm_eps)


def pack_layer(layer: Any, shape: DecoderShape) -> PackedLayer:
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    qk_norm = None
    if hasattr(attention, "q_norm"):
        norms = (attention.q_norm.weight.expand(shape.heads, -1), attention.k_norm.weight.expand(shape.kv_heads, -1))
        qk_norm = torch.cat(norms)
    return PackedLayer(
        input_norm=layer.input_layernorm.weight,
        qkv=torch.cat([projection.weight for projection in projections]),
        qkv_bias=None if attention.q_proj.bias is None else torch.cat([p.bias for p in projections]),
        qk_norm=qk_norm,
        output=attention.o_proj.weight,
        output_bias=attention.o_proj.bias,
        post_norm=layer.post_attention_layernorm.weight,
        mlp=_pack_mlp(layer.mlp),
    )


def _pack_mlp(mlp: Any) -> PackedMlp | PackedExperts:
    if hasattr(mlp, "experts"):
        return pack_experts(mlp)
    return PackedMlp(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), mlp.down_proj.weight, mlp.act_fn)


def rotary_tables(model: Any, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines, and sines with the sign of `rotate_half` folded in: [positions, 1, head_dim] each."""
    base = model.model
    cos, sin = base.rotary_emb(base.embed_tokens.weight[:1], torch.arange(positions)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return cos[0][:, None].contiguous(), signed[:, None].contiguous()


def require_supported(model: Any, max_model_len: int) -> None:
    """Raises EngineError unless the model is a Llama, Qwen2, Qwen3 or Qwen3-MoE, long enough for the engine."""
    config = model.config
    problem = None
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in FAST_ARCHITECTURES or not hasattr(model, "lm_head"):
        problem = f"a `{config.model_type}` model ({type(model).__name__})"
    elif kinds != {"full_attention"}:
        problem = f"layers of type {sorted(kinds)}"
    # It has no layer_types.
    elif config.model_type == "qwen3_moe" and config.sliding_window:
        problem = "attention in a sliding window"
    elif rope_type not in _STATIC_ROPE:
        problem = f"rotary positions of type `{rope_type}`"
    elif getattr(config, "mlp_bias", False):
        problem = "an MLP with biases"
    elif max_model_len > config.max_position_embeddings:
        problem = f"engine.max_model_len={max_model_len} above the model's {config.max_position_embeddings} positions"
    if problem:
        raise EngineError(
            f"The embedded engine does not compute {problem}. It serves Llama, Qwen2, Qwen3 and Qwen3-MoE models with "
            "full attention, within their trained positions; use engine=vllm for others."
        )
