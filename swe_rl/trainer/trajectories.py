"""Knows what a token's loss needs of its whole trajectory, whose rows may be in several micro-batches.

Invariants:
- All ranks ask for the same sums at the same time.
- Everything here is a constant of the loss: no gradient flows through it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swe_rl.algo.correction import correction_weights
from swe_rl.algo.own_algorithm import Loss, LossTokens
from swe_rl.algo.sequences import Sequences
from swe_rl.config.schema import AlgoConfig
from swe_rl.trainer.compute import Work

SumOverRanks = Callable[[Tensor], Tensor]


def trajectories_of(works: Sequence[Work], over_ranks: SumOverRanks) -> Sequences:
    """Returns the trajectories of one mini-batch."""
    joined = torch.cat([work.sequences for work in works])
    return Sequences(joined, works[0].num_sequences, over_ranks=over_ranks)


def means_of(works: Sequence[Work], values: Sequence[Tensor], over_ranks: SumOverRanks) -> list[Tensor]:
    """Returns the mean over each token's trajectory; for each micro-batch, as `values` has them."""
    joined = trajectories_of(works, over_ranks).mean(torch.cat(list(values)))
    return list(torch.split(joined, [len(part) for part in values]))


def corrections_of(
    works: Sequence[Work], old: Sequence[Tensor], algo: AlgoConfig, version: int, over_ranks: SumOverRanks
) -> list[Tensor]:
    """Returns the correction weights of a whole mini-batch. `old` are log-probabilities by the weights of `version`."""
    rollout = torch.cat([work.rollout_logprobs for work in works])
    versions = torch.cat([work.versions for work in works])
    trajectories = trajectories_of(works, over_ranks)
    joined = correction_weights(torch.cat(list(old)), rollout, trajectories, algo, versions < version)
    return list(torch.split(joined, [len(part) for part in old]))


def correction_of(work: Work, old: Tensor, algo: AlgoConfig, version: int) -> Tensor:
    """Returns the correction weights of one micro-batch alone, where no weight depends on another token."""
    sequences = Sequences(work.sequences, work.num_sequences)
    return correction_weights(old, work.rollout_logprobs, sequences, algo, work.versions < version)


def terms_of(
    formula: Loss, work: Work, *, logprobs: Tensor, old_logprobs: Tensor, reference_logprobs: Tensor | None
) -> Tensor:
    """Returns what somebody's own loss wants the mean of over each trajectory, [tokens] of one micro-batch."""
    tokens = LossTokens(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        rollout_logprobs=work.rollout_logprobs,
        advantages=work.advantages,
        entropy=torch.full_like(logprobs, torch.nan),
        reference_logprobs=reference_logprobs,
        sequences=work.sequences,
    )
    return formula.sequence_terms(tokens)
