"""Advantages of a whole step: group by group, or normalized over all groups at once (REINFORCE++).

Invariants:
- A member outside the baseline gets 0 and moves nobody, in its group or in another.
- The advantages of the batch's baseline members sum to 0; with a group baseline each group's do.
- With a group baseline a degenerate group stays at exactly 0: the normalization leaks nothing into it.
- The batch is counted in trajectories, not in tokens, so a long trajectory moves the mean no more than a short one.
"""

from collections.abc import Sequence
from statistics import fmean

from swe_rl.algo.advantage import MIN_REWARD_SPREAD, STD_EPS, advantages, members_of, over_batch, sample_std
from swe_rl.config.choices import Advantage
from swe_rl.config.schema import AlgoConfig

Group = tuple[Sequence[float | None], Sequence[bool]]


def batch_advantages(groups: Sequence[Group], config: AlgoConfig) -> list[list[float]]:
    """One advantage per member of each group of (rewards, in_baseline), in the order given; dimensionless.

    - reinforce_pp: (r - mean of the batch) / (std of the batch + 1e-6) (REINFORCE++, arXiv:2501.03262v9, section 3,
      global advantage normalization).
    - reinforce_pp_baseline: r - mean of the group, then the same (section 3, with baseline). The batch's mean is 0 by
      then, so only the division is left.
    - `normalize_std` off leaves the division out of both. Every other estimator: `advantages` of each group.

    The paper takes the KL penalty off the reward token by token, from each token on; `algo.kl_in=reward` takes the
    trajectory's sum off its reward, which has the same expected gradient (earlier penalties do not depend on later
    tokens) and more variance. Raises ValueError as `advantages` does.
    """
    if not over_batch(config):
        return [advantages(rewards, in_baseline, config) for rewards, in_baseline in groups]
    members = [members_of(rewards, in_baseline) for rewards, in_baseline in groups]
    if config.advantage is Advantage.reinforce_pp_baseline:
        members = [_less_mean(group) for group in members]
    shift, scale = _moments([value for group in members for value in group.values()], config)
    return [
        [scale * (group[i] - shift) if i in group else 0.0 for i in range(len(rewards))]
        for (rewards, _), group in zip(groups, members, strict=True)
    ]


def _less_mean(group: dict[int, float]) -> dict[int, float]:
    """A group of less than two members, or of equal rewards, has no information of its own: all 0."""
    values = list(group.values())
    if not values or max(values) - min(values) <= MIN_REWARD_SPREAD:
        return dict.fromkeys(group, 0.0)
    mean = fmean(values)
    return {i: value - mean for i, value in group.items()}


def _moments(values: list[float], config: AlgoConfig) -> tuple[float, float]:
    """What to take off and what to multiply with."""
    if len(values) < 2 or max(values) - min(values) <= MIN_REWARD_SPREAD:
        return 0.0, 0.0
    shift = 0.0 if config.advantage is Advantage.reinforce_pp_baseline else fmean(values)
    return shift, 1.0 / (sample_std(values) + STD_EPS) if config.normalize_std else 1.0
