"""A causal language model of transformers, spread over the ranks of each replica and fed with packed rows.

Invariants:
- Weights, gradients and optimizer state are float32 shards; computation is in `compute_dtype`, gradients are reduced
  in float32 (FSDP2). One unit a decoder layer, and one of embedding, last norm and head together; one more a layer
  whose experts are spread (`experts`).
- Logits never exist whole (`chunked_logprobs`).
- The names of the parameters stay transformers' own, or `adapter_names` tells them.
- What is frozen below an adapter is of one type, which may be `compute_dtype`; it has no gradient and no float32 copy.
- Between two calls the parameters are shards: an optimizer made then holds what is trained.
- Before the first step packed and plain log-probabilities are seen to agree: the reference is transformers' own code
  with its own attention and, unless they are spread, its own experts, on one row at a time, with the same weights. All
  ranks take part, and come to the same verdict;
  a difference that rounding does not explain stops the run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from swe_rl.config.known_models import ARCHITECTURES
from swe_rl.trainer.logprobs import chunked_logprobs, scalars
from swe_rl.trainer.protocol import CorruptionError, MeshError, TrainerError
from swe_rl.trainer.sharded.attention import Kernel, attention_operators
from swe_rl.trainer.sharded.experts import use_sharded_experts
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import PackedBatch, pack
from swe_rl.trainer.sharded.ulysses import NAME, Packed, check_heads, use_packed_attention


class ShardedModel(nn.Module):
    """`forward` gives log-probabilities and entropies; `causal_lm` keeps the weights and their names."""

    def __init__(
        self,
        causal_lm: Any,
        mesh: Mesh,
        kernel: Kernel,
        *,
        compute_dtype: torch.dtype = torch.bfloat16,
        offload: bool = False,
        compiled: bool = False,
        float32_head: bool = True,
        values: bool = False,
    ) -> None:
        """Shards `causal_lm` in place, which may be on the meta device. Raises MeshError where it cannot be.

        `offload` keeps shards, gradients and optimizer state in the host's memory; `compiled` has torch compile what
        surrounds attention; `float32_head` as in `chunked_logprobs`. `values`: it is a critic, with a `value_head`.
        """
        super().__init__()
        config = causal_lm.config
        check_supported(causal_lm)
        check_heads(config.num_attention_heads, config.num_key_value_heads, mesh.sp)
        self.mesh, self.compute_dtype, self.offload, self._kernel = mesh, compute_dtype, offload, kernel
        self.causal_lm, self._float32_head, self._values = causal_lm, float32_head, values
        use_packed_attention(causal_lm)
        self._plain_experts = getattr(config, "_experts_implementation", None)
        spread = use_sharded_experts(causal_lm, mesh, compiled=compiled)
        if compiled:
            _compile_layers(causal_lm.model.layers)
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        place = CPUOffloadPolicy() if offload else OffloadPolicy()
        # Each layer, then the whole: what no layer has claimed (embedding, last norm, head) becomes the last unit.
        for experts in spread:
            fully_shard(experts, mesh=mesh.expert_shards, mp_policy=policy, offload_policy=place)
        for layer in causal_lm.model.layers:
            fully_shard(layer, mesh=mesh.shards, mp_policy=policy, offload_policy=place)
        fully_shard(self, mesh=mesh.shards, mp_policy=policy, offload_policy=place)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = super().__call__(*arguments, **named)
        if not torch.is_grad_enabled():
            self.to_shards()  # no backward pass will do it
        return result

    def to_shards(self) -> None:
        """Gives back what the last forward pass gathered: whoever reads the parameters then finds the shards."""
        reshard: Any = self.reshard
        reshard()

    def forward(self, batch: PackedBatch, temperature: float, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (nats) of each of this rank's trained tokens, float32 [trained tokens]; of a
        critic the values, twice."""
        extra: dict[str, Any] = {}
        if self.causal_lm.config._attn_implementation == NAME:
            extra["packed"] = Packed(batch.segments, self._kernel, self.mesh.sp_group, self.mesh.sp)
        output = self.causal_lm.model(
            input_ids=batch.input_ids,
            attention_mask=None,
            position_ids=batch.position_ids,
            use_cache=False,
            **extra,
        )
        hidden = output[0][0][batch.hidden_index]
        if self._values:
            values = scalars(hidden, self.causal_lm.value_head.weight)
            return values, values
        weight = self.causal_lm.lm_head.weight
        return chunked_logprobs(
            hidden, weight, batch.targets, temperature, entropy_grad=entropy_grad, float32_head=self._float32_head
        )

    @contextmanager
    def plain_attention(self) -> Iterator[None]:
        """transformers' own attention inside of the block, and experts: for whole sequences of a single row."""
        config = self.causal_lm.config
        here = getattr(config, "_experts_implementation", None)
        config._attn_implementation = "sdpa"
        if self.mesh.ep == 1 and here is not None:
            config._experts_implementation = self._plain_experts
        try:
            yield
        finally:
            config._attn_implementation = NAME
            if here is not None:
                config._experts_implementation = here


def check_supported(causal_lm: Any) -> None:
    """Raises MeshError for models whose forward pass `ShardedModel` would get wrong."""
    config, head = causal_lm.config, causal_lm.get_submodule("lm_head")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    problem = None
    if config.model_type not in ARCHITECTURES:
        problem = f"a `{config.model_type}` model"
    elif kinds != {"full_attention"}:
        problem = f"layers of type {sorted(kinds)}"
    elif config.model_type == "qwen3_moe" and config.sliding_window:  # it has no layer_types
        problem = "attention in a sliding window"
    elif head.bias is not None:
        problem = "an output head with a bias"
    elif getattr(config, "attention_dropout", 0.0):
        problem = "dropout in attention"
    if problem:
        raise MeshError(
            f"The parallel trainer does not compute {problem}: it takes Llama, Qwen2, Qwen3 and Qwen3-MoE models with "
            "full attention. Choose another model option."
        )


def checkpoint_activations(model: ShardedModel, on: bool, *, keep_attention: bool = True) -> None:
    """Keeps one hidden state a layer and computes the rest again in the backward pass.

    `keep_attention` also keeps what attention gave, a second hidden state a layer: its cost grows with the square of
    the rows' lengths, so it is the one thing that is not worth computing twice.
    """
    model.train(on)  # transformers checkpoints in training mode only; without dropout it changes nothing else
    if on:
        options: dict[str, Any] = {"use_reentrant": False}
        if keep_attention:
            options["context_fn"] = _attention_is_kept
        model.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def head_shape(config: Any) -> tuple[int, int, int]:
    """Query heads, key-value heads and head size of a transformers configuration."""
    heads: int = config.num_attention_heads
    return heads, config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _attention_is_kept() -> Any:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts(attention_operators())


def _compile_layers(layers: Any) -> None:
    """Piece by piece, so that the sharding hooks around a layer and attention's exchanges stay outside.

    So do the matrices of a mixture of experts, which have another number of rows each time; what stands between them is
    compiled where it is computed (experts.py).
    """
    for layer in layers:
        for name in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
            piece = getattr(layer, name, None)
            if piece is None:
                raise TrainerError(f"trainer.compile is on, but this model's layers have no `{name}`.")
            if not hasattr(piece, "experts"):
                piece.compile(dynamic=True)


_PROBED_ROWS = 3
# Mean absolute difference in nats that rounding explains, measured for random and trained weights alike.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}


@dataclass(frozen=True, slots=True)
class Difference:
    """Of log-probabilities in nats, over `tokens` tokens; `spread` is their standard deviation in the reference."""

    mean: float
    largest: float
    spread: float
    tokens: int


def require_agreement(model: ShardedModel, *, tokens: int = 512) -> Difference:
    """Raises CorruptionError where packed and plain log-probabilities differ by more than rounding."""
    difference = compare(model, tokens=tokens, rows=_PROBED_ROWS)
    dtype = model.compute_dtype
    if not difference.mean <= TOLERANCE[dtype]:  # also where it is not a number
        raise CorruptionError(
            f"The packed, sharded forward pass gives log-probabilities that are off by {difference.mean:.3g} nats on "
            f"average ({difference.largest:.3g} at most, over {difference.tokens} tokens, {dtype}) from those of the "
            "model itself: training on them would be noise. Try trainer.attention=by_row, which uses torch's own "
            "attention, and layout.sequence_parallel=1; report the versions of torch and transformers."
        )
    return difference


@torch.no_grad()
def compare(model: ShardedModel, *, tokens: int, rows: int) -> Difference:
    """Random rows of uneven length, at most `tokens` long, packed into one sequence."""
    mesh, vocab = model.mesh, int(model.causal_lm.config.vocab_size)
    generator = np.random.default_rng(0)
    lengths = [max(4, tokens - i * tokens // (2 * rows)) for i in range(rows)]
    sequences = [([int(x) for x in generator.integers(0, vocab, n)], [0] + [1] * (n - 1)) for n in lengths]
    members = tuple(range(rows))

    def packed(indices: Sequence[int], ranks: int, rank: int) -> PackedBatch:
        chosen = [sequences[i] for i in indices]
        return pack(chosen, tuple(indices), 0, mesh.device, sp=ranks, sp_rank=rank)

    batch = packed(members, mesh.sp, mesh.sp_rank)
    got = model(batch, 1.0)[0]
    together = torch.zeros(sum(n - 1 for n in lengths), dtype=torch.float64, device=mesh.device)
    together[batch.trained_index] = got.double()
    together = mesh.sum(together) / mesh.dp  # the data-parallel groups computed the same rows
    with model.plain_attention():
        alone = torch.cat([model(packed([i], 1, 0), 1.0)[0] for i in members]).double()
    return _difference(together, alone)


def _difference(got: Tensor, expected: Tensor) -> Difference:
    error = (got - expected).abs()
    return Difference(float(error.mean()), float(error.max()), float(expected.std()), error.numel())
