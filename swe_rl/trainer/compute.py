"""How a mini-batch becomes micro-batches and log-probabilities: here alone, or on many ranks.

Invariants:
- Both give the same loss and the same gradient; only speed and memory differ.
- On many ranks each micro-batch's trained tokens are spread over the ranks, each exactly once, and every rank makes
  the same number of passes.
- FSDP averages gradients over the ranks; `gradient_scale` turns that into the sum that the loss means.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from swe_rl.trainer.batching import MicroBatch, input_length, micro_batches
from swe_rl.trainer.errors import TrainerError
from swe_rl.trainer.logprobs import token_logprobs
from swe_rl.trainer.pulse import Beat, beating, no_beat
from swe_rl.trainer.sharded.balance import balanced
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import ShardedModel, checkpoint_activations
from swe_rl.trainer.sharded.packing import PackedBatch, pack

Batch = MicroBatch | PackedBatch
IdsAndMask = tuple[Sequence[int], Sequence[int]]


class Compute(ABC):
    """`gradient_scale`: what a loss is multiplied by, because ranks average their gradients."""

    def __init__(self, mesh: Mesh, beat: Beat = no_beat) -> None:
        """`beat` is called wherever work gets on."""
        self.mesh, self.beat = mesh, beat
        self.gradient_scale = float(mesh.world)

    @property
    def device(self) -> torch.device:
        """Where micro-batches are computed; offloaded parameters are elsewhere."""
        return self.mesh.device

    @abstractmethod
    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[Any]:
        """This rank's micro-batches; at most `max_tokens` tokens on each rank where a row is not longer."""

    @abstractmethod
    def logprobs(self, model: nn.Module, batch: Any, temperature: float, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (nats) of this rank's trained tokens."""

    @abstractmethod
    def checkpoint_activations(self, model: nn.Module, on: bool) -> None: ...

    def bare(self, model: nn.Module) -> nn.Module:
        """The model under transformers' own names."""
        return model


class ShardedCompute(Compute):
    """For `ShardedModel`s on the ranks of `mesh`."""

    def __init__(self, mesh: Mesh, cost_per_token: float = 0.0, beat: Beat = no_beat) -> None:
        """`cost_per_token`: what a token's matrices cost in pairs of attending tokens; 0 leaves attention out.

        `beat` is called when a micro-batch is put together, and at its start.
        """
        super().__init__(mesh, beat)
        self._pair_cost = 1.0 / cost_per_token if cost_per_token > 0 else 0.0

    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[PackedBatch]:
        mesh = self.mesh
        lengths = [input_length(mask) for _, mask in sequences]
        plan = balanced(lengths, max_tokens * mesh.sp, mesh.dp, self._row_cost)
        return [
            pack(
                [sequences[i] for i in by_rank[mesh.dp_rank]],
                by_rank[mesh.dp_rank],
                pad_token_id,
                mesh.device,
                sp=mesh.sp,
                sp_rank=mesh.sp_rank,
            )
            for by_rank in beating(plan, self.beat)
        ]

    def logprobs(
        self, model: nn.Module, batch: PackedBatch, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        self.beat()
        result: tuple[Tensor, Tensor] = model(batch, temperature, entropy_grad)
        return result

    def checkpoint_activations(self, model: nn.Module, on: bool) -> None:
        assert isinstance(model, ShardedModel)
        checkpoint_activations(model, on)

    def bare(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, ShardedModel)
        model.to_shards()
        bare: nn.Module = model.causal_lm
        return bare

    def _row_cost(self, tokens: int) -> float:
        return tokens + 0.5 * tokens * tokens * self._pair_cost


class LocalCompute(Compute):
    """For a plain model in this process, in padded micro-batches; its mesh is `mesh.alone`."""

    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[MicroBatch]:
        return micro_batches(sequences, max_tokens, pad_token_id, self.device)

    def logprobs(
        self, model: nn.Module, batch: MicroBatch, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(model, batch, temperature, entropy_grad=entropy_grad)

    def checkpoint_activations(self, model: nn.Module, on: bool) -> None:
        _checkpoint_activations(model, on)


def _checkpoint_activations(model: nn.Module, on: bool) -> None:
    # Evaluation mode keeps dropout off, without which the ratio would not be 1; only checkpointing needs training mode.
    model.train(on)
    if on:
        enable: Any = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise TrainerError("trainer.activation_checkpointing is on, but this model does not support it.")
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
