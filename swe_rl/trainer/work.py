"""A mini-batch as tensors: what one micro-batch needs for its loss.

Invariants:
- Per-token tensors have one entry per trained token, in the micro-batch's order.
- `weights` come from the whole mini-batch; `sequences` number its trajectories across micro-batches and ranks.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.algo.row import Row
from swe_rl.trainer.compute import Batch, Compute
from swe_rl.trainer.minibatch import MiniBatch
from swe_rl.trainer.sharded.packing import PackedBatch


@dataclass(frozen=True, slots=True)
class Work:
    """All of shape [trained tokens] of this rank; `rollout_logprobs` is NaN where the engine's are unknown.

    `num_sequences` is the number of trajectories in the whole mini-batch. `versions` (int64) are the oldest weights
    that sampled in the token's row.
    """

    batch: Batch
    advantages: Tensor
    weights: Tensor
    rollout_logprobs: Tensor
    sequences: Tensor
    num_sequences: int
    versions: Tensor


def build_work(mini: MiniBatch, max_tokens: int, pad_token_id: int, compute: Compute) -> list[Work]:
    """This rank's micro-batches of one mini-batch, on its device."""
    numbers = {trajectory_id: n for n, trajectory_id in enumerate(dict.fromkeys(r.trajectory_id for r in mini.rows))}
    sequences = [(row.token_ids, row.loss_mask) for row in mini.rows]
    return [_work(batch, mini, numbers) for batch in compute.micro_batches(sequences, max_tokens, pad_token_id)]


def _work(batch: Batch, mini: MiniBatch, numbers: dict[str, int]) -> Work:
    rows = [mini.rows[i] for i in batch.members]
    device = batch.input_ids.device

    def per_token(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).to(device)[batch.member_of_token]

    sequence_of_row = torch.tensor([numbers[row.trajectory_id] for row in rows], dtype=torch.int64).to(device)
    known = torch.tensor([p for row in rows for p in _rollout_logprobs(row)], dtype=torch.float32).to(device)
    return Work(
        batch=batch,
        advantages=per_token([row.advantage for row in rows]),
        weights=per_token([mini.weights[i] for i in batch.members]),
        rollout_logprobs=known[batch.trained_index] if isinstance(batch, PackedBatch) else known,
        sequences=sequence_of_row[batch.member_of_token],
        num_sequences=len(numbers),
        versions=torch.tensor([row.weight_versions[0] for row in rows], dtype=torch.int64).to(device)[
            batch.member_of_token
        ],
    )


def _rollout_logprobs(row: Row) -> list[float]:
    if row.rollout_logprobs is None:
        return [math.nan] * sum(row.loss_mask)
    return [p for p, masked in zip(row.rollout_logprobs, row.loss_mask, strict=True) if masked]
