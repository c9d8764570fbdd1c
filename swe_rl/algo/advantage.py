"""Turns rewards into advantages: how much better a trajectory did than its group, or its whole step.

Invariants:
- One call of `compute_advantages` sees one group; groups never mix, however uneven they are.
- A member outside the baseline gets 0 and enters neither mean nor standard deviation, of its group or another.
- The advantages of a group's baseline members sum to 0; over a batch without group baseline (REINFORCE++), those of the
  batch.
- A group that cannot teach anything (fewer than two baseline members, or rewards that are equal but for rounding) is
  degenerate: all zeros, exactly. With a group baseline the normalization of a batch leaks nothing into it.
- Nothing is divided by the standard deviation of penalties alone: where the graded rewards are equal, penalties are
  centred and keep their size.
- A batch is counted in trajectories, not in tokens, so a long trajectory moves the mean no more than a short one.
- The penalty of an overlong trajectory is never positive, 0 up to the buffer, and falls linearly to -penalty at the
  very end of the budget. The filter takes trajectories out of the loss only; their rewards stay in the baseline.
- "Standard deviation" is the sample's (n - 1), as in the common implementations of GRPO; the paper leaves it open.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

from swe_rl.algo.residue import without_residue
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.config.schema import AlgoConfig

Place = TypeVar("Place")
Group = tuple[Sequence[float | None], Sequence[bool]]
# A trajectory ends in one of these ways if a limit on turns, tokens or time cut it short.
CUT_SHORT = frozenset({"step_limit", "context_overflow", "agent_timeout"})
# GRPO's implementations add 1e-6 to the standard deviation, so that nearly equal rewards are not blown up without
# bound.
_STD_EPS = 1e-6


def rewards_with_kl(rewards: Sequence[float | None], kl_sums: Sequence[float], kl_coef: float) -> list[float | None]:
    """Returns rewards less `kl_coef` times each trajectory's KL summed over its sampled tokens (nats).

    It serves `algo.kl_in=reward` and is applied before the advantages, so the penalty is centred with the group
    (InstructGPT, arXiv:2203.02155, equation 2, as an outcome reward). A missing reward stays missing.
    """
    if len(rewards) != len(kl_sums):
        raise ValueError(f"{len(rewards)} rewards, but {len(kl_sums)} KL sums")
    pairs = zip(rewards, kl_sums, strict=True)
    return [None if reward is None else reward - kl_coef * kl for reward, kl in pairs]


def overlong_penalty(length_tokens: int, max_tokens: int, share: float, penalty: float) -> float:
    """Returns what a trajectory of `length_tokens` is charged. `share` of `max_tokens` is the buffer (0: off).

    The formula is DAPO's, arXiv:2503.14476, section 3.4, equation 13, with the buffer given as a share of the budget.
    """
    buffer_tokens = share * max_tokens
    if buffer_tokens <= 0:
        return 0.0
    over = length_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(1.0, max(0.0, over / buffer_tokens))


def is_overlong(status: str, ended_by_cut: bool, overlong_filter: bool) -> bool:
    """Tells whether `algo.overlong_filter` masks a trajectory of this status, or one that a cut reply ended.

    DAPO, arXiv:2503.14476, section 3.4, calls it overlong filtering: the loss of truncated samples is masked.
    """
    return overlong_filter and (ended_by_cut or status in CUT_SHORT)


def compute_advantages(
    rewards: Sequence[float | None],
    in_baseline: Sequence[bool],
    config: AlgoConfig,
    graded: Sequence[float | None] | None = None,
) -> list[float]:
    """Returns one advantage per member of one group, in the order given; dimensionless.

    - grpo: (r - mean) / (std + 1e-6), and without the division if `normalize_std` is off (DeepSeekMath,
      arXiv:2402.03300, section 4.1.2).
    - dr_grpo: r - mean (Understanding R1-Zero-Like Training, arXiv:2503.20783, section 3.2).
    - rloo: n / (n - 1) * (r - mean), which is r minus the mean of the others (Back to Basics, arXiv:2402.14740, section
      3.3). With `normalize_std` it is divided as grpo's.

    `graded` are the rewards before penalties were taken off; None: there are none. A member without a reward counts as
    outside the baseline. Raises ValueError where the lengths differ, where a reward is not finite or above 1e12 in
    size, and for the estimators of `batch_advantages`, which need more than one group.
    """
    if _over_batch(config):
        raise ValueError(f"algo.advantage={config.advantage} normalizes over the batch: use batch_advantages")
    members = _members_of(rewards, in_baseline)
    compared = _less_mean(members, graded or ())
    scale = group_scale(rewards, in_baseline, config, graded) * others_factor(len(members), config)
    return [scale * compared.get(place, 0.0) for place in range(len(rewards))]


def group_scale(
    rewards: Sequence[float | None],
    in_baseline: Sequence[bool],
    config: AlgoConfig,
    graded: Sequence[float | None] | None = None,
) -> float:
    """Returns the factor by which `compute_advantages` scales a group's rewards: 1 / (std + 1e-6) with
    `normalize_std`, and 1 where they are equal."""
    divides = config.advantage in (AdvantageKind.grpo, AdvantageKind.rloo) and config.normalize_std
    members = _members_of(rewards, in_baseline)
    if not divides or not _any_nonzero([_less_mean(members, graded or ())]):
        return 1.0
    # Penalties alone are not blown up to the size of rewards.
    if graded is not None and is_degenerate(graded, in_baseline):
        return 1.0
    return 1.0 / (_sample_std(list(members.values())) + _STD_EPS)


def others_factor(number: int, config: AlgoConfig) -> float:
    """Returns what makes a difference from the mean of `number` one from the mean of the others, for RLOO."""
    if config.advantage is AdvantageKind.rloo and number > 1:
        return number / (number - 1)
    return 1.0


def batch_advantages(
    groups: Sequence[Group], config: AlgoConfig, graded: Sequence[Sequence[float | None]] | None = None
) -> list[list[float]]:
    """Returns one advantage per member of each group of (rewards, in_baseline), in the order given; dimensionless.

    - reinforce_pp: (r - mean of the batch) / (std of the batch + 1e-6) (REINFORCE++, arXiv:2501.03262v9, section 3,
      global advantage normalization).
    - reinforce_pp_baseline: r - mean of the group, then the same (section 3, with baseline). The batch's mean is 0 by
      then, so only the division is left.
    - `normalize_std` off leaves the division out of both. Every other estimator: `compute_advantages` of each group.

    The paper takes the KL penalty off the reward token by token, from each token on; `algo.kl_in=reward` takes the
    trajectory's sum off its reward, which has the same expected gradient (earlier penalties do not depend on later
    tokens) and more variance. `graded` has each group's rewards before penalties were taken off. Raises ValueError as
    `compute_advantages` does.
    """
    if graded is not None:
        before = graded
    else:
        before = [rewards for rewards, _ in groups]
    if not _over_batch(config):
        return [
            compute_advantages(rewards, in_baseline, config, uncharged)
            for (rewards, in_baseline), uncharged in zip(groups, before, strict=True)
        ]
    compared = _subtract_mean(groups, before, config)
    uncharged_groups = [(rewards, in_baseline) for rewards, (_, in_baseline) in zip(before, groups, strict=True)]
    normalizes = _any_nonzero(_subtract_mean(uncharged_groups, before, config))
    values = [value for group in compared for value in group.values()]
    scale = 1.0
    if config.normalize_std and normalizes and _any_nonzero(compared):
        scale = 1.0 / (_sample_std(values) + _STD_EPS)
    return [
        [scale * group.get(place, 0.0) for place in range(len(rewards))]
        for (rewards, _), group in zip(groups, compared, strict=True)
    ]


def is_degenerate(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> bool:
    """Tells whether a group has nothing to compare: every advantage is 0 whatever the estimator of a group."""
    return not _any_nonzero([_less_mean(_members_of(rewards, in_baseline))])


def _over_batch(config: AlgoConfig) -> bool:
    return config.advantage in (AdvantageKind.reinforce_pp, AdvantageKind.reinforce_pp_baseline)


def _members_of(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> dict[int, float]:
    """Returns the rewards of the baseline's members by their place in the group.

    Raises ValueError as `compute_advantages` does.
    """
    if len(rewards) != len(in_baseline):
        raise ValueError(f"{len(rewards)} rewards, but {len(in_baseline)} baseline flags")
    members = {i: r for i, (r, kept) in enumerate(zip(rewards, in_baseline, strict=True)) if kept and r is not None}
    if not all(abs(reward) <= LARGEST_REWARD for reward in members.values()):
        raise ValueError(f"A reward is not finite, or larger than {LARGEST_REWARD:g} in size: {list(members.values())}")
    return members


def _subtract_mean(
    groups: Sequence[Group], before: Sequence[Sequence[float | None]], config: AlgoConfig
) -> list[dict[int, float]]:
    """Returns rewards less the group's mean, or less the batch's, by their place in their group. `before`
    is `graded`.
    """
    members = [_members_of(rewards, in_baseline) for rewards, in_baseline in groups]
    if config.advantage is AdvantageKind.reinforce_pp_baseline:
        return [_less_mean(group, graded) for group, graded in zip(members, before, strict=True)]
    numbered = {(number, place): reward for number, group in enumerate(members) for place, reward in group.items()}
    compared = _less_mean(numbered, [reward for graded in before for reward in graded])
    return [{place: compared[number, place] for place in group} for number, group in enumerate(members)]


def _any_nonzero(compared: Sequence[Mapping[Any, float]]) -> bool:
    return any(value != 0.0 for group in compared for value in group.values())


def _sample_std(rewards: Sequence[float]) -> float:
    """Returns the sample standard deviation of at least two values."""
    mean = fmean(rewards)
    return math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))


def _less_mean(members: Mapping[Place, float], before: Iterable[float | None] = ()) -> dict[Place, float]:
    """Returns values less their mean: all 0 for fewer than two, or where rounding alone tells them apart.

    `before` has the numbers that penalties were taken off of; the size of the rounding is theirs.
    """
    if len(members) < 2:
        return dict.fromkeys(members, 0.0)
    values = list(members.values())
    mean = fmean(values)
    largest = max(abs(term) for term in (*values, *before) if term is not None)
    compared = without_residue([value - mean for value in values], largest)
    return dict(zip(members, compared.tolist(), strict=True))
