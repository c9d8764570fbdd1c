"""Turns a mini-batch into micro-batches and log-probabilities, in this process alone or on many ranks.

Invariants:
- Both give the same loss and the same gradient; only speed and memory differ.
- On many ranks each micro-batch's trained tokens are spread over the ranks, each exactly once, and every rank makes the
  same number of passes.
- FSDP averages gradients over the ranks; `gradient_scale` turns that into the sum that the loss means.
- Every rank has the same number of micro-batches, so that no collective waits for one that never comes; what is missing
  is an empty one.
- Every row is in exactly one micro-batch. One has at most `max_tokens` tokens, unless a single row alone is longer.
- The micro-batches that run at the same time cost about the same; the dearest come first, so that a step that does not
  fit into memory fails at once.
- The plan is deterministic: the same lengths give the same plan on every rank.
- Per-token tensors have one entry per trained token, in the micro-batch's order.
- `weights` come from the whole mini-batch; `sequences` number its trajectories across micro-batches and ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swe_rl.algo.row import Logprobs, PerToken, Row
from swe_rl.config.schema import TrainerConfig
from swe_rl.trainer.batching import IdsAndMask, MicroBatch, input_length, micro_batches
from swe_rl.trainer.dropout import train_without_dropout
from swe_rl.trainer.logprobs import token_logprobs, token_values
from swe_rl.trainer.minibatch import MiniBatch
from swe_rl.trainer.output_head import probe_head
from swe_rl.trainer.pulse import Beat, no_beat, with_beats
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import ShardedModel, checkpoint_activations
from swe_rl.trainer.sharded.packing import PackedBatch, pack_sequences
from swe_rl.trainer.trainer import TrainerError


def balance_rows(
    lengths: Sequence[int], max_tokens: int, ranks: int, cost: Callable[[int], float]
) -> list[list[tuple[int, ...]]]:
    """Returns `plan[i][r]`, the rows of the i-th micro-batch of rank r. `cost` is that of one row of so many tokens.

    The longest rows come first, into the fewest bins that hold everything, in multiples of `ranks` (R. L. Graham,
    "Bounds on multiprocessing timing anomalies", 1969).
    """
    if not lengths:
        return []
    bins_needed = _first_fit(lengths, max_tokens)
    count = -(-bins_needed // ranks) * ranks
    bins = _fill_bins(lengths, max_tokens, count, cost)
    # First-fit ignores the costs. The cheapest bin may have no room where first-fit found some, so a round of bins more
    # is needed then.
    while bins is None:
        count += ranks
        bins = _fill_bins(lengths, max_tokens, count, cost)
    bins.sort(key=lambda rows: (-sum(cost(lengths[i]) for i in rows), rows))
    return [[tuple(rows) for rows in bins[i : i + ranks]] for i in range(0, count, ranks)]


def _first_fit(lengths: Sequence[int], max_tokens: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = next((i for i, room in enumerate(rooms) if room >= length), None)
        if fitting is None:
            rooms.append(max(0, max_tokens - length))
        else:
            rooms[fitting] -= length
    return len(rooms)


def _fill_bins(
    lengths: Sequence[int], max_tokens: int, count: int, cost: Callable[[int], float]
) -> list[list[int]] | None:
    """Puts each row, the dearest first, into the cheapest bin that has room. Returns None where a row finds no bin."""
    bins: list[list[int]] = [[] for _ in range(count)]
    tokens = [0] * count
    costs = [0.0] * count
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        open_bins = [b for b in range(count) if not bins[b] or tokens[b] + lengths[row] <= max_tokens]
        if not open_bins:
            return None
        chosen = min(open_bins, key=lambda b: (costs[b], b))
        bins[chosen].append(row)
        tokens[chosen] += lengths[row]
        costs[chosen] += cost(lengths[row])
    return bins


Batch = MicroBatch | PackedBatch


class Compute(ABC):
    """Computes log-probabilities. A loss is multiplied by `gradient_scale`, because ranks average their gradients."""

    def __init__(self, mesh: Mesh, beat: Beat = no_beat) -> None:
        """Keeps the mesh. `beat` is called wherever work gets on."""
        self.mesh = mesh
        self.beat = beat
        self.gradient_scale = float(mesh.world)

    @property
    def device(self) -> torch.device:
        """The device on which micro-batches are computed; offloaded parameters are elsewhere."""
        return self.mesh.device

    @abstractmethod
    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[Any]:
        """Returns this rank's micro-batches, each of at most `max_tokens` tokens where no row is longer."""

    @abstractmethod
    def logprobs(self, model: nn.Module, batch: Any, temperature: float, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        """Returns the log-probability and the entropy (nats) of this rank's trained tokens."""

    @abstractmethod
    def values(self, model: nn.Module, batch: Any) -> Tensor:
        """Returns a critic's values at this rank's trained tokens, float32 [trained tokens]."""

    @abstractmethod
    def checkpoint_activations(self, model: nn.Module, on: bool) -> None: ...

    def look_at_head(self, model: nn.Module) -> None:
        """Finds out what the model's own head does, before anything is hooked to the model or counted."""

    def bare(self, model: nn.Module) -> nn.Module:
        """Returns the model under transformers' own names."""
        return model


class ShardedCompute(Compute):
    """Computes with `ShardedModel`s on the ranks of `mesh`."""

    def __init__(
        self, mesh: Mesh, cost_per_token: float = 0.0, beat: Beat = no_beat, *, packs_rows: bool = True
    ) -> None:
        """Keeps the costs. `cost_per_token` is what a token's matrices cost in pairs of attending tokens.

        0 leaves attention out of the costs. `beat` is called when a micro-batch is put together, and at its start.
        Without `packs_rows` each row is a micro-batch of its own.
        """
        super().__init__(mesh, beat)
        self._packs_rows = packs_rows
        if cost_per_token > 0:
            self._pair_cost = 1.0 / cost_per_token
        else:
            self._pair_cost = 0.0

    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[PackedBatch]:
        mesh = self.mesh
        lengths = [input_length(mask) for _, mask in sequences]
        # No two rows that have tokens fit into one token.
        room = 1
        if self._packs_rows:
            room = max_tokens * mesh.sp
        plan = balance_rows(lengths, room, mesh.dp, self._row_cost)
        return [
            pack_sequences(
                [sequences[i] for i in by_rank[mesh.dp_rank]],
                by_rank[mesh.dp_rank],
                pad_token_id,
                mesh.device,
                sp=mesh.sp,
                sp_rank=mesh.sp_rank,
            )
            for by_rank in with_beats(plan, self.beat)
        ]

    def logprobs(
        self, model: nn.Module, batch: PackedBatch, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        self.beat()
        result: tuple[Tensor, Tensor] = model(batch, temperature, entropy_grad)
        return result

    def values(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        self.beat()
        values: Tensor = model(batch, 1.0)[0]
        return values

    def checkpoint_activations(self, model: nn.Module, on: bool) -> None:
        assert isinstance(model, ShardedModel)
        checkpoint_activations(model, on)

    def bare(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, ShardedModel)
        model.to_shards()
        bare: nn.Module = model.causal_lm
        return bare

    def _row_cost(self, tokens: int) -> float:
        # A token attends to half of the row on average, hence the 0.5.
        return tokens + 0.5 * tokens * tokens * self._pair_cost


class LocalCompute(Compute):
    """Computes with a plain model in this process, in padded micro-batches; its mesh is `mesh.alone`."""

    def micro_batches(self, sequences: Sequence[IdsAndMask], max_tokens: int, pad_token_id: int) -> list[MicroBatch]:
        return micro_batches(sequences, max_tokens, pad_token_id, self.device)

    def logprobs(
        self, model: nn.Module, batch: MicroBatch, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(model, batch, temperature, entropy_grad=entropy_grad)

    def values(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        return token_values(model, batch)

    def look_at_head(self, model: nn.Module) -> None:
        probe_head(model)

    def checkpoint_activations(self, model: nn.Module, on: bool) -> None:
        _checkpoint_activations(model, on)


def _checkpoint_activations(model: nn.Module, on: bool) -> None:
    # Checkpointing works in training mode only, but what training mode draws at random has to stay off.
    train_without_dropout(model, on)
    if on:
        enable: Any = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise TrainerError("trainer.activation_checkpointing is on, but this model does not support it.")
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one micro-batch. Its tensors are [trained tokens] of this rank.

    `rollout_logprobs` is NaN where the engine's are unknown. `num_sequences` is the number of trajectories in the whole
    mini-batch. `versions` (int64) are the oldest weights that sampled in the token's row.
    """

    batch: Batch
    advantages: Tensor
    weights: Tensor
    rollout_logprobs: Tensor
    sequences: Tensor
    num_sequences: int
    versions: Tensor


def build_work(mini: MiniBatch, max_tokens: int, pad_token_id: int, compute: Compute) -> list[Work]:
    """Returns this rank's micro-batches of one mini-batch, on its device."""
    numbers = {trajectory_id: n for n, trajectory_id in enumerate(dict.fromkeys(r.trajectory_id for r in mini.rows))}
    sequences = [(row.token_ids, row.loss_mask) for row in mini.rows]
    return [_make_work(batch, mini, numbers) for batch in compute.micro_batches(sequences, max_tokens, pad_token_id)]


def _make_work(batch: Batch, mini: MiniBatch, numbers: dict[str, int]) -> Work:
    rows = [mini.rows[i] for i in batch.members]
    device = batch.input_ids.device

    def of_rows(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).to(device)[batch.member_of_token]

    sequence_of_row = torch.tensor([numbers[row.trajectory_id] for row in rows], dtype=torch.int64).to(device)
    return Work(
        batch=batch,
        advantages=of_tokens(batch, [row.advantage for row in rows]),
        weights=of_rows([mini.weights[i] for i in batch.members]),
        rollout_logprobs=of_tokens(batch, [_rollout_logprobs(row) for row in rows]),
        sequences=sequence_of_row[batch.member_of_token],
        num_sequences=len(numbers),
        versions=torch.tensor([row.oldest_version for row in rows], dtype=torch.int64).to(device)[
            batch.member_of_token
        ],
    )


def of_tokens(batch: Batch, values: Sequence[PerToken]) -> Tensor:
    """Returns [trained tokens] of this rank, on its device. `values` has an array for each member of the batch."""
    known = torch.from_numpy(np.concatenate([*values, np.zeros(0, np.float32)])).to(batch.input_ids.device)
    if isinstance(batch, PackedBatch):
        return known[batch.trained_index]
    return known


@torch.no_grad()
def per_token(
    rows: Sequence[Row], batches: Sequence[Any], compute: Compute, of_batch: Callable[[Any], Tensor]
) -> list[npt.NDArray[np.float64]]:
    """Returns what `of_batch` gives at each row's trained tokens, in their order; every rank gets that of all ranks.

    `batches` are the rows' micro-batches, of `Compute.micro_batches`.
    """
    counts = [row.sampled_tokens for row in rows]
    first = [sum(counts[:i]) for i in range(len(rows))]
    flat = torch.zeros(sum(counts), dtype=torch.float64, device=compute.device)
    for batch in batches:
        places = torch.tensor(
            [first[member] + i for member in batch.members for i in range(counts[member])],
            dtype=torch.int64,
            device=compute.device,
        )
        if isinstance(batch, PackedBatch):
            here = places[batch.trained_index]
        else:
            here = places
        flat[here] = of_batch(batch).double()
    if rows:
        return np.split(compute.mesh.sum(flat).cpu().numpy(), np.cumsum(counts)[:-1])
    return []


def _rollout_logprobs(row: Row) -> Logprobs:
    if row.rollout_logprobs is None:
        return np.full(row.sampled_tokens, np.nan, np.float32)
    return row.rollout_logprobs[row.loss_mask]


@contextmanager
def out_of_memory_named(config: TrainerConfig, what: str) -> Iterator[None]:
    """Raises TrainerError in place of torch's OutOfMemoryError. `what` is a step of the trainer, in words.

    It is an error of ours, because the same rows would need as much again: no rank is started anew for it. Each key
    that the message names leaves the loss and the gradient as they are.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).split(". ")[0].rstrip(".")
        raise TrainerError(
            f"The trainer ran out of memory in {what}: {reason}. Nothing of this step is recorded or saved. Go on from "
            f"the newest checkpoint with trainer.resume=auto and less memory: {', or '.join(_ways_out(config))}."
        ) from error


def _ways_out(config: TrainerConfig) -> Iterator[str]:
    tokens = config.max_tokens_per_micro_batch
    yield f"trainer.max_tokens_per_micro_batch={max(1, tokens // 2)} (it is {tokens})"
    if not config.activation_checkpointing:
        yield "trainer.activation_checkpointing=true"
    if not config.offload_optimizer:
        yield "trainer.offload_optimizer=true"
    if config.activation_checkpointing or config.offload_optimizer:
        yield "more ranks (layout.trainer_gpus, layout.shard_ranks where it is set, layout.sequence_parallel)"
