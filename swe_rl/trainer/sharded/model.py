"""A causal language model of transformers, spread over all ranks and fed with packed rows.

Invariants:
- Weights, gradients and optimizer state are float32 shards; computation is in `compute_dtype`, gradients are reduced
  in float32 (FSDP2). One unit a decoder layer, and one of embedding, last norm and head together.
- Logits never exist whole (`chunked_logprobs`).
- The names of the parameters stay transformers' own, or `adapter_names` tells them.
- What is frozen below an adapter is of one type, which may be `compute_dtype`; it has no gradient and no float32 copy.
- Between two calls the parameters are shards: an optimizer made then holds what is trained.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from swe_rl.trainer.logprobs import chunked_logprobs, scalars
from swe_rl.trainer.protocol import MeshError, TrainerError
from swe_rl.trainer.sharded.attention import Kernel, attention_operators
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import PackedBatch
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
        if compiled:
            _compile_layers(causal_lm.model.layers)
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        place = CPUOffloadPolicy() if offload else OffloadPolicy()
        # Each layer, then the whole: what no layer has claimed (embedding, last norm, head) becomes the last unit.
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
        """transformers' own attention inside of the block: for whole sequences of a single row."""
        self.causal_lm.config._attn_implementation = "sdpa"
        try:
            yield
        finally:
            self.causal_lm.config._attn_implementation = NAME


def check_supported(causal_lm: Any) -> None:
    """Raises MeshError for models whose forward pass `ShardedModel` would get wrong."""
    config, head = causal_lm.config, causal_lm.get_submodule("lm_head")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    problem = None
    if config.model_type not in ("llama", "qwen2", "qwen3", "qwen3_moe"):
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

    So does a mixture of experts, whose matrices have another number of rows each time.
    """
    for layer in layers:
        for name in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
            piece = getattr(layer, name, None)
            if piece is None:
                raise TrainerError(f"trainer.compile is on, but this model's layers have no `{name}`.")
            if not hasattr(piece, "experts"):
                piece.compile(dynamic=True)
