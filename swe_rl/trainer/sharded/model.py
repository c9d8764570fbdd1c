"""Spreads a causal language model of transformers over each replica's ranks, and feeds it packed rows.

Invariants:
- Weights, gradients and optimizer state are float32 shards; computation is in `compute_dtype`, gradients are reduced in
  float32 (FSDP2). Each decoder layer is one unit, and embedding, last norm and head together are one; a layer whose
  experts are spread has one more (`experts`).
- Logits never exist whole (`chunked_logprobs`).
- The names of the parameters stay transformers' own, or `adapter_names` tells them.
- What is frozen below an adapter is of one type, which may be `compute_dtype`; it has no gradient and no float32 copy.
- Between two calls the parameters are shards: an optimizer made then holds what is trained.
- A family that is not among the fast ones is computed by transformers' own code: packed rows where `pack_proof.py`
  has seen that no row looks into another one, else a row at a time. It is neither split by sequence nor by expert.
- Before the first step packed and plain log-probabilities are seen to agree: the reference is transformers' own code
  with its own attention and, unless they are spread, its own experts, on one row at a time, with the same weights. All
  ranks take part, and come to the same verdict; a difference that rounding does not explain stops the run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.trainer.dropout import train_without_dropout
from swe_rl.trainer.logprobs import chunked_logprobs, own_logprobs, scalar_outputs
from swe_rl.trainer.output_head import layers_of
from swe_rl.trainer.sharded import row_attention
from swe_rl.trainer.sharded.attention import Kernel, attention_operators
from swe_rl.trainer.sharded.experts import use_sharded_experts
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import PackedBatch, pack_sequences
from swe_rl.trainer.sharded.row_attention import Rows
from swe_rl.trainer.sharded.ulysses import NAME, Packed, check_heads, use_packed_attention
from swe_rl.trainer.trainer import CorruptionError, MeshError, TrainerError


class ShardedModel(nn.Module):
    """A model whose `forward` gives log-probabilities and entropies; `causal_lm` keeps the weights and their names."""

    def __init__(
        self,
        causal_lm: Any,
        mesh: Mesh,
        kernel: Kernel | None,
        *,
        compute_dtype: torch.dtype = torch.bfloat16,
        offload: bool = False,
        compiled: bool = False,
        float32_head: bool = True,
        values: bool = False,
    ) -> None:
        """Shards `causal_lm` in place, which may be on the meta device. Raises MeshError where it cannot be.

        `kernel` is None for a family that is not fast. `offload` keeps shards, gradients and optimizer state in the
        host's memory; `compiled` has torch compile what surrounds attention, in fast families; `float32_head` is as in
        `chunked_logprobs`. With `values` it is a critic, with a `value_head`.
        """
        super().__init__()
        config = causal_lm.config
        self.is_fast = is_fast(config)
        check_supported(causal_lm, mesh)
        if self.is_fast:
            check_heads(config.num_attention_heads, config.num_key_value_heads, mesh.sp)
        # Whether a micro-batch may have several rows.
        self.packs_rows = self.is_fast
        self.mesh = mesh
        self.compute_dtype = compute_dtype
        self.offload = offload
        self._kernel = kernel
        self.causal_lm = causal_lm
        self._float32_head = float32_head
        self._values = values
        # The rows of the last pass of `row_attention`.
        self.rows: Rows | None = None
        self.layers = decoder_layers(causal_lm)
        if self.is_fast:
            self.own_attention = "sdpa"
        else:
            self.own_attention = config._attn_implementation
        self._plain_experts = getattr(config, "_experts_implementation", None)
        spread = []
        if self.is_fast:
            use_packed_attention(causal_lm)
            spread = use_sharded_experts(causal_lm, mesh, compiled=compiled)
            if compiled:
                _compile_layers(self.layers)
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        place = OffloadPolicy()
        if offload:
            place = CPUOffloadPolicy()
        # Each layer, then the whole: what no layer has claimed (embedding, last norm, head) becomes the last unit.
        for experts in spread:
            fully_shard(experts, mesh=mesh.expert_shards, mp_policy=policy, offload_policy=place)
        for layer in self.layers:
            fully_shard(layer, mesh=mesh.shards, mp_policy=policy, offload_policy=place)
        fully_shard(self, mesh=mesh.shards, mp_policy=policy, offload_policy=place)
        # Some families have dropout, and a model that was made from its configuration alone begins in training mode.
        self.eval()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = super().__call__(*arguments, **named)
        if not torch.is_grad_enabled():
            # Without gradients there is no backward pass that would do it.
            self.to_shards()
        return result

    def to_shards(self) -> None:
        """Gives back what the last forward pass gathered: whoever reads the parameters then finds the shards."""
        reshard: Any = self.reshard
        reshard()

    def forward(self, batch: PackedBatch, temperature: float, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Returns log-probability and entropy (nats) of this rank's trained tokens, float32 [trained tokens].

        A critic returns its values, twice.
        """
        attention = self.causal_lm.config._attn_implementation
        extra: dict[str, Any] = {"position_ids": batch.position_ids}
        if attention == NAME:
            assert self._kernel is not None, "a fast family has a kernel"
            extra["packed"] = Packed(batch.segments, self._kernel, self.mesh.sp_group, self.mesh.sp)
        elif attention == row_attention.NAME:
            self.rows = extra["rows"] = Rows(batch.segments)
        elif not self.is_fast:
            # The row is alone. Not every family takes positions, and each begins at 0 without them.
            extra = {}
        layers = layers_of(self.causal_lm)
        output = layers(input_ids=batch.input_ids, attention_mask=None, use_cache=False, **extra)
        hidden = output[0][0][batch.hidden_index]
        if self._values:
            values = scalar_outputs(hidden, self.causal_lm.value_head.weight)
            return values, values
        if not self.is_fast:
            return own_logprobs(self.causal_lm, hidden, batch.targets, temperature, entropy_grad)
        weight = self.causal_lm.lm_head.weight
        return chunked_logprobs(
            hidden, weight, batch.targets, temperature, entropy_grad=entropy_grad, float32_head=self._float32_head
        )

    @contextmanager
    def plain_attention(self) -> Iterator[None]:
        """Uses transformers' own attention and experts inside of the block: for whole sequences of a single row."""
        config = self.causal_lm.config
        here = getattr(config, "_experts_implementation", None)
        packed = config._attn_implementation
        config._attn_implementation = self.own_attention
        if self.mesh.ep == 1 and here is not None:
            config._experts_implementation = self._plain_experts
        try:
            yield
        finally:
            config._attn_implementation = packed
            if here is not None:
                config._experts_implementation = here


def is_fast(config: Any) -> bool:
    return config.model_type in FAST_ARCHITECTURES


def decoder_layers(causal_lm: Any) -> nn.ModuleList:
    """Returns the list of a model's layers: the longest one, and of several the one with most weights."""
    lists = [module for module in causal_lm.modules() if isinstance(module, nn.ModuleList)]
    shape = causal_lm.config.get_text_config()
    of_layers = [layers for layers in lists if len(layers) == shape.num_hidden_layers]
    if not of_layers:
        raise MeshError(f"The layers of a `{shape.model_type}` model are not found: train it with layout=local.")
    return max(of_layers, key=lambda layers: sum(parameter.numel() for parameter in layers.parameters()))


def check_supported(causal_lm: Any, mesh: Mesh) -> None:
    """Raises MeshError for models whose forward pass `ShardedModel` would get wrong."""
    config = causal_lm.config
    if not is_fast(config):
        split = {"sequence_parallel": mesh.sp, "expert_parallel": mesh.ep}
        for key in (key for key, ranks in split.items() if ranks > 1):
            raise MeshError(
                f"layout.{key}={split[key]} is not known for a `{config.model_type}` model, but for "
                f"{', '.join(FAST_ARCHITECTURES)} only: set layout.{key}=1."
            )
        return
    head = causal_lm.get_submodule("lm_head")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    problem = None
    if kinds != {"full_attention"}:
        problem = f"layers of type {sorted(kinds)}"
    # It has no layer_types.
    elif config.model_type == "qwen3_moe" and config.sliding_window:
        problem = "attention in a sliding window"
    elif head.bias is not None:
        problem = "an output head with a bias"
    elif row_attention.has_changing_frequencies(causal_lm):
        problem = "rotary frequencies that the longest row decides"
    if problem:
        raise MeshError(
            f"The parallel trainer does not compute {problem} of a `{config.model_type}` model: it takes these with "
            "full attention and a plain head. Choose another model option."
        )


def checkpoint_activations(model: ShardedModel, on: bool, *, keep_attention: bool = True) -> None:
    """Keeps one hidden state a layer and computes the rest again in the backward pass.

    `keep_attention` also keeps what attention gave, a second hidden state a layer: its cost grows with the square of
    the rows' lengths, so it is the one thing that is not worth computing twice.
    """
    # transformers checkpoints in training mode only.
    train_without_dropout(model, on)
    if on:
        options: dict[str, Any] = {"use_reentrant": False}
        if keep_attention and model.is_fast:
            options["context_fn"] = _attention_is_kept
        model.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def head_shape(config: Any) -> tuple[int, int, int]:
    """Returns query heads, key-value heads and head size of a transformers configuration."""
    heads: int = config.num_attention_heads
    return heads, config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _attention_is_kept() -> Any:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts(attention_operators())


def _compile_layers(layers: Any) -> None:
    """Compiles layers piece by piece, so that the sharding hooks around a layer and attention's exchanges stay outside.

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


# With three rows there is one in the middle, whose neighbours on both sides could leak into it.
_PROBED_ROWS = 3
# Rounding explains this mean absolute difference in nats, measured for random and trained weights alike.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}


@dataclass(frozen=True, slots=True)
class LogprobDifference:
    """The difference of log-probabilities in nats, over `tokens` tokens.

    `spread` is their standard deviation in the reference.
    """

    mean: float
    largest: float
    spread: float
    tokens: int


def require_agreement(model: ShardedModel, *, tokens: int = 512) -> LogprobDifference:
    """Raises CorruptionError where packed and plain log-probabilities differ by more than rounding."""
    difference = compare_packed(model, tokens=tokens)
    dtype = model.compute_dtype
    # The negation also catches a mean that is not a number.
    if not difference.mean <= TOLERANCE[dtype]:
        raise CorruptionError(
            f"The packed, sharded forward pass gives log-probabilities that are off by {difference.mean:.3g} nats on "
            f"average ({difference.largest:.3g} at most, over {difference.tokens} tokens, {dtype}) from those of the "
            "model itself: training on them would be noise. Try trainer.attention=by_row, which uses torch's own "
            "attention, and layout.sequence_parallel=1; report the versions of torch and transformers."
        )
    return difference


@torch.no_grad()
def compare_packed(
    model: ShardedModel, *, tokens: int, rows: int = _PROBED_ROWS, by_own_code: bool = True
) -> LogprobDifference:
    """Compares random rows of uneven length, at most `tokens` long, packed into one sequence, with each row alone.

    `by_own_code` has transformers' own attention and experts compute the rows that are alone. Else both ways have ours.
    """
    mesh = model.mesh
    vocab = int(model.causal_lm.config.get_text_config().vocab_size)
    generator = np.random.default_rng(0)
    lengths = [max(4, tokens - i * tokens // (2 * rows)) for i in range(rows)]
    sequences = [([int(x) for x in generator.integers(0, vocab, n)], [0] + [1] * (n - 1)) for n in lengths]
    members = tuple(range(rows))

    def packed(indices: Sequence[int], ranks: int, rank: int) -> PackedBatch:
        chosen = [sequences[i] for i in indices]
        return pack_sequences(chosen, tuple(indices), 0, mesh.device, sp=ranks, sp_rank=rank)

    batch = packed(members, mesh.sp, mesh.sp_rank)
    got = model(batch, 1.0)[0]
    together = torch.zeros(sum(n - 1 for n in lengths), dtype=torch.float64, device=mesh.device)
    together[batch.trained_index] = got.double()
    # The data-parallel groups computed the same rows.
    together = mesh.sum(together) / mesh.dp
    with model.plain_attention() if by_own_code else nullcontext():
        alone = torch.cat([model(packed([i], 1, 0), 1.0)[0] for i in members]).double()
    return _measure_difference(together, alone)


def _measure_difference(got: Tensor, expected: Tensor) -> LogprobDifference:
    error = (got - expected).abs()
    return LogprobDifference(float(error.mean()), float(error.max()), float(expected.std()), error.numel())
