"""The decoder's forward pass over a slot cache, from the weights of a transformers model.

Invariants:
- A token's result does not depend on the other rows of a forward pass: projections run over at least `ROW_MULTIPLE`
  rows (below four, the matrix library sums in another order), attention runs one sequence at a time over exactly the
  positions that it sees, and a prompt is cut into query blocks at absolute multiples of `BLOCK_TOKENS` only.
- Weights are read from the transformers model once per `pack`; query/key/value and gate/up become one matrix each.
- Supported: decoders built as Llama, Qwen2 and Qwen3 are (RMSNorm, rotary positions, gated MLP, full attention).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from swe_rl.engine.protocol import EngineError
from swe_rl.engine.slot_cache import BLOCK_TOKENS, CacheShape, SlotCache

ROW_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """New tokens `ids` of one slot, at positions `start` .. `start + len(ids)`."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    act: Any


class PackedDecoder:
    """Logits of new tokens, given a `SlotCache`. Not thread-safe; call it under `torch.inference_mode`."""

    def __init__(self, model: Any, max_model_len: int, pad_token_id: int) -> None:
        """Raises EngineError when the architecture is not one that this forward pass computes."""
        _require_supported(model, max_model_len)
        config = model.config
        self._model = model
        self._pad_token_id = pad_token_id
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.vocab_size: int = config.vocab_size
        self._eps: float = config.rms_norm_eps
        self._scale = self.head_dim**-0.5
        self._cos, self._sin = self._rotary_tables(max_model_len)
        self._mask = self._causal_mask(max_model_len)
        self.pack()

    def cache_shape(self, slots: int, max_tokens: int) -> CacheShape:
        return CacheShape(slots, max_tokens, len(self._layers), self.kv_heads, self.head_dim)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._embedding.dtype
        return dtype

    def pack(self) -> None:
        """Reads the model's weights again; call it after they changed."""
        with torch.no_grad():
            base = self._model.model
            self._embedding = base.embed_tokens.weight.detach()
            self._final_norm = base.norm.weight.detach()
            self._lm_head = self._model.lm_head.weight.detach()
            self._layers = [self._pack_layer(layer) for layer in base.layers]

    def prefill(self, spans: Sequence[PrefillSpan], cache: SlotCache) -> torch.Tensor:
        """Writes the spans' keys and values; logits [spans, vocab] after the last token of each."""
        ids = [token for span in spans for token in span.ids]
        rows = len(ids)
        positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        offsets = [0]
        for span in spans:
            offsets.append(offsets[-1] + len(span.ids))
        hidden = self._embed(ids)
        positions = functional.pad(positions, (0, hidden.shape[0] - rows))
        cos, sin = self._cos[positions], self._sin[positions]
        for layer, store in zip(self._layers, cache.layers, strict=True):
            qkv = self._project(layer, hidden, cos, sin)
            attended = hidden.new_zeros(hidden.shape[0], self.heads, self.head_dim)
            for span, offset in zip(spans, offsets, strict=False):
                part = qkv[offset : offset + len(span.ids)]
                store[span.slot, :, span.start : span.end] = part[:, self.heads :].transpose(0, 1)
                self._attend_span(part, store[span.slot], span, attended[offset : offset + len(span.ids)])
            self._finish_layer(layer, hidden, attended)
        return self._logits(hidden[torch.tensor(offsets[1:]) - 1])

    def decode(
        self, slots: Sequence[int], positions: Sequence[int], ids: Sequence[int], cache: SlotCache
    ) -> torch.Tensor:
        """One token per slot: writes its key and value at its position; logits [slots, vocab]."""
        rows = len(slots)
        hidden = self._embed(ids)
        where, at = torch.tensor(slots), torch.tensor(positions)
        padded = functional.pad(at, (0, hidden.shape[0] - rows))
        cos, sin = self._cos[padded], self._sin[padded]
        groups = (rows, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        for layer, store in zip(self._layers, cache.layers, strict=True):
            qkv = self._project(layer, hidden, cos, sin)
            store[where, :, at] = qkv[:rows, self.heads :]
            query = qkv[:rows, : self.heads].reshape(groups)
            attended = hidden.new_zeros(hidden.shape[0], self.heads, self.head_dim)
            self._attend_rows(query, store, slots, positions, attended)
            self._finish_layer(layer, hidden, attended)
        return self._logits(hidden)[:rows]

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor(ids)
        padding = -len(ids) % ROW_MULTIPLE
        return functional.embedding(functional.pad(tokens, (0, padding), value=self._pad_token_id), self._embedding)

    def _project(self, layer: _Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Queries, keys (both normalised and rotated) and values: [rows, heads + 2 * kv_heads, head_dim]."""
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.input_norm, self._eps)
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias).view(hidden.shape[0], -1, self.head_dim)
        rotated = qkv[:, : self.heads + self.kv_heads]
        source = rotated
        if layer.qk_norm is not None:
            source = functional.rms_norm(rotated, (self.head_dim,), None, self._eps).mul_(layer.qk_norm)
        turned = source.roll(self.head_dim // 2, -1).mul_(sin)
        torch.mul(source, cos, out=rotated)
        rotated.add_(turned)
        return qkv

    def _attend_span(self, qkv: torch.Tensor, store: torch.Tensor, span: PrefillSpan, out: torch.Tensor) -> None:
        """Causal attention of the span's queries, block by block; `store` is [2 * kv_heads, tokens, head_dim]."""
        start, per_kv = span.start, self.heads // self.kv_heads
        while start < span.end:
            end = min(span.end, (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
            rows = slice(start - span.start, end - span.start)
            query = qkv[rows, : self.heads].view(end - start, self.kv_heads, per_kv, self.head_dim)
            query = query.permute(1, 0, 2, 3).reshape(1, self.kv_heads, -1, self.head_dim)
            first = self._mask.shape[1] - BLOCK_TOKENS - start
            mask = self._mask[: (end - start) * per_kv, first : first + end]
            attended = functional.scaled_dot_product_attention(
                query, store[None, : self.kv_heads, :end], store[None, self.kv_heads :, :end], mask, scale=self._scale
            )
            grouped = attended[0].view(self.kv_heads, end - start, per_kv, self.head_dim).transpose(0, 1)
            out[rows].view(end - start, self.kv_heads, per_kv, self.head_dim).copy_(grouped)
            start = end

    def _attend_rows(
        self,
        query: torch.Tensor,
        store: torch.Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        out: torch.Tensor,
    ) -> None:
        """One query token per slot over its own positions only: exact lengths, so no mask and no padding."""
        kv = self.kv_heads
        attend = functional.scaled_dot_product_attention
        flat = out.view(out.shape[0], kv, -1, self.head_dim)
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            seen = store[slot : slot + 1, :, : position + 1]
            flat[row : row + 1] = attend(query[row : row + 1], seen[:, :kv], seen[:, kv:], scale=self._scale)

    def _finish_layer(self, layer: _Layer, hidden: torch.Tensor, attended: torch.Tensor) -> None:
        """Output projection and MLP, both added to `hidden` in place."""
        hidden.add_(functional.linear(attended.view(hidden.shape[0], -1), layer.output, layer.output_bias))
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.post_norm, self._eps)
        gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
        hidden.add_(functional.linear(layer.act(gate).mul_(up), layer.down))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        padded = functional.pad(hidden, (0, 0, 0, -rows % ROW_MULTIPLE))
        normed = functional.rms_norm(padded, hidden.shape[-1:], self._final_norm, self._eps)
        return functional.linear(normed, self._lm_head)[:rows]

    def _pack_layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        bias = None if attention.q_proj.bias is None else torch.cat([p.bias.detach() for p in projections])
        qk_norm = None
        if hasattr(attention, "q_norm"):
            q_norm = attention.q_norm.weight.detach().expand(self.heads, -1)
            qk_norm = torch.cat([q_norm, attention.k_norm.weight.detach().expand(self.kv_heads, -1)])
        return _Layer(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=torch.cat([p.weight.detach() for p in projections]),
            qkv_bias=bias,
            qk_norm=qk_norm,
            output=attention.o_proj.weight.detach(),
            output_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.detach(),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()]),
            down=mlp.down_proj.weight.detach(),
            act=mlp.act_fn,
        )

    def _rotary_tables(self, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines, and sines with the sign of `rotate_half` folded in: [positions, 1, head_dim] each."""
        base = self._model.model
        with torch.no_grad():
            cos, sin = base.rotary_emb(base.embed_tokens.weight[:1], torch.arange(max_model_len)[None])
        half = self.head_dim // 2
        signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        return cos[0][:, None].contiguous(), signed[:, None].contiguous()

    def _causal_mask(self, max_model_len: int) -> torch.Tensor:
        """[block * group, max_model_len + block]: all of the past, then the causal triangle of one query block."""
        per_kv = self.heads // self.kv_heads
        triangle = torch.full((BLOCK_TOKENS, BLOCK_TOKENS), float("-inf")).triu(1).repeat_interleave(per_kv, 0)
        return torch.cat([torch.zeros(BLOCK_TOKENS * per_kv, max_model_len), triangle], dim=1)


def _require_supported(model: Any, max_model_len: int) -> None:
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = getattr(config, "rope_parameters", None) or {}
    problem = None
    if config.model_type not in ("llama", "qwen2", "qwen3") or not hasattr(model, "lm_head"):
        problem = f"a `{config.model_type}` model ({type(model).__name__})"
    elif kinds != {"full_attention"}:
        problem = f"layers of type {sorted(kinds)}"
    elif rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        problem = f"rotary positions of type `{rope['rope_type']}`"
    elif max_model_len > config.max_position_embeddings:
        problem = f"engine.max_model_len={max_model_len} above the model's {config.max_position_embeddings} positions"
    elif getattr(config, "mlp_bias", False):
        problem = "an MLP with biases"
    if problem:
        raise EngineError(
            f"The embedded engine does not compute {problem}. It serves causal Llama, Qwen2 and Qwen3 models with full "
            "attention, within their trained positions; use engine=vllm for others."
        )
