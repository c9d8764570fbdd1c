"""Divides a step's rows into mini-batches, of which each is one optimizer update.

Invariants:
- Rows of one group, so also of one split trajectory, are in one mini-batch.
- The groups of mini-batches differ in number by one at most: a rest would make an update of a few groups that moves the
  weights as far as one of many.
- The order depends on the rows' ids, the seed and the step only, never on the order in which rollouts finished.
- The weights are those of the whole mini-batch; leaving out rows without gradient afterwards does not change them.
- Where a token's loss depends on its whole trajectory, no row is left out that is of a trajectory with a gradient.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from swe_rl.algo.correction import has_token_weights, weighs_sequences
from swe_rl.algo.loss import by_sequence, row_weights, zero_advantage_contributes
from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig
from swe_rl.trainer.trainer import TrainerError


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One optimizer update: the `rows` that the gradient needs, and the weight of each trained token of
    each of them.
    """

    rows: tuple[Row, ...]
    weights: tuple[float, ...]


def mini_batches(
    rows: Sequence[Row],
    algo: AlgoConfig,
    prompts_per_mini_batch: int,
    seed: int,
    *,
    keep_all: bool = False,
    keep_whole: bool = False,
) -> list[MiniBatch]:
    """Returns the fewest mini-batches that have at most `prompts_per_mini_batch` groups each; those without gradient
    go.

    `keep_all` keeps rows whose advantages are all 0 although they add nothing, `keep_whole` those of trajectories that
    have another row with a gradient. Raises TrainerError on a malformed row.
    """
    for row in rows:
        check_row(row, algo)
    trained = _sort_rows(row for row in rows if row.trained_tokens > 0)
    groups = sorted({row.group_id for row in trained})
    random.Random(seed).shuffle(groups)
    keep_all = keep_all or zero_advantage_contributes(algo)
    keep_whole = keep_whole or weighs_sequences(algo) or by_sequence(algo)
    batches = (
        _mini_batch([row for row in trained if row.group_id in chunk], algo, keep_all=keep_all, keep_whole=keep_whole)
        for chunk in _even_chunks(groups, prompts_per_mini_batch)
    )
    return [batch for batch in batches if batch.rows]


def left_out(rows: Sequence[Row], batches: Sequence[MiniBatch], algo: AlgoConfig) -> list[Row]:
    """Returns rows with sampled tokens that no mini-batch has, in an order that does not depend on the rollouts'
    timing.
    """
    fed = {id(row) for batch in batches for row in batch.rows}
    rest = [row for row in rows if id(row) not in fed and row.sampled_tokens and _row_problem(row, algo) is None]
    return _sort_rows(rest)


def measured_rows(rows: Sequence[Row], most_tokens: int, seed: int) -> tuple[Row, ...]:
    """Returns whole rows drawn at random, of `most_tokens` tokens at most, but one at least; all rows
    where they fit.
    """
    drawn = random.Random(seed).sample(list(rows), len(rows))
    tokens = 0
    for count, row in enumerate(drawn):
        tokens += len(row.token_ids)
        if tokens > most_tokens:
            return tuple(drawn[: max(1, count)])
    return tuple(drawn)


def _even_chunks(groups: Sequence[str], most: int) -> list[set[str]]:
    count = -(-len(groups) // most)
    ends = [-(-len(groups) * (i + 1) // count) for i in range(count)]
    return [set(groups[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def check_row(row: Row, algo: AlgoConfig) -> None:
    """Raises TrainerError where a row could only train nonsense."""
    problem = None
    if row.trained:
        problem = _row_problem(row, algo)
    if problem:
        raise TrainerError(f"A row of trajectory {row.trajectory_id} cannot be trained: {problem}.")


def _mini_batch(rows: list[Row], algo: AlgoConfig, *, keep_all: bool, keep_whole: bool) -> MiniBatch:
    counts = [row.trained_tokens for row in rows]
    ids = [row.trajectory_id for row in rows]
    groups = [row.group_id for row in rows]
    weights = row_weights(counts, ids, algo.loss_aggregation, algo.loss_norm_tokens, groups)
    taught = {row.trajectory_id for row in rows if keep_whole and row.teaches}
    needed = [keep_all or row.teaches or row.trajectory_id in taught for row in rows]
    kept = [pair for pair, is_needed in zip(zip(rows, weights, strict=True), needed, strict=True) if is_needed]
    return MiniBatch(rows=tuple(row for row, _ in kept), weights=tuple(weight for _, weight in kept))


def _sort_rows(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows by group, trajectory, ids and mask. Only rows of one trajectory are compared by their tokens."""
    by_trajectory: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_trajectory.setdefault((row.group_id, row.trajectory_id), []).append(row)
    return [row for name in sorted(by_trajectory) for row in sorted(by_trajectory[name], key=_token_order)]


def _token_order(row: Row) -> tuple[bytes, bytes]:
    """Returns a key that orders rows by their ids: big-endian bytes of ids, which are not negative, keep that order."""
    return row.token_ids.astype(">i4").tobytes(), row.loss_mask.tobytes()


def _row_problem(row: Row, algo: AlgoConfig) -> str | None:
    tokens = len(row.token_ids)
    if len(row.loss_mask) != tokens:
        return f"it has {tokens} tokens, but {len(row.loss_mask)} mask entries"
    if tokens and row.loss_mask[0]:
        return "its first token is trained, but nothing predicts it"
    if len(row.weight_versions) != row.sampled_tokens:
        return f"it has {row.sampled_tokens} sampled tokens, but {len(row.weight_versions)} weight versions"
    if len(row.advantage) != row.sampled_tokens:
        return f"it has {row.sampled_tokens} sampled tokens, but {len(row.advantage)} advantages"
    if not np.isfinite(row.advantage).all():
        return f"an advantage is {row.advantage[~np.isfinite(row.advantage)][0]}"
    if row.routes is not None and len(row.routes) != tokens - 1:
        return f"it has {tokens} tokens, but {len(row.routes)} were routed to experts"
    if row.rollout_logprobs is None:
        if has_token_weights(algo):
            return f"algo.correction={algo.correction} needs the engine's log-probabilities (rollout.capture=traced)"
        return None
    if len(row.rollout_logprobs) != tokens:
        return f"it has {tokens} tokens, but {len(row.rollout_logprobs)} log-probabilities"
    if not np.isfinite(row.rollout_logprobs[row.loss_mask]).all():
        return "the log-probability of a sampled token is not finite"
    return None
