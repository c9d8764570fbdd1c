"""From rewards to advantages: how much better a trajectory did than its group, or its whole step (REINFORCE++).

Invariants:
- One call of `advantages` sees one group; groups never mix, however uneven they are.
- A member outside the baseline gets 0 and enters neither mean nor standard deviation, of its group or another.
- The advantages of a group's baseline members sum to 0; over a batch without group baseline, those of the batch.
- A group that cannot teach anything (fewer than two baseline members, or equal rewards) is degenerate: all zeros.
  With a group baseline the normalization of a batch leaks nothing into it.
- Nothing is divided by the standard deviation of penalties alone: where the graded rewards are equal, penalties are
  centred and keep their size.
- A batch is counted in trajectories, not in tokens, so a long trajectory moves the mean no more than a short one.
- The penalty of an overlong trajectory is never positive, 0 up to the buffer, and falls linearly to -penalty at the
  very end of the budget. The filter takes trajectories out of the loss only; their rewards stay in the baseline.
- "Standard deviation" is the sample's (n - 1), as in the common implementations of GRPO; the paper leaves it open.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from swe_rl.config.choices import Advantage
from swe_rl.config.schema import AlgoConfig

Group = tuple[Sequence[float | None], Sequence[bool]]
# How a trajectory ends that a limit cut short: on turns, on tokens, on time.
CUT_SHORT = frozenset({"step_limit", "context_overflow", "agent_timeout"})
_STD_EPS = 1e-6
_MIN_REWARD_SPREAD = 1e-8


def rewards_with_kl(rewards: Sequence[float | None], kl_sums: Sequence[float], kl_coef: float) -> list[float | None]:
    """Rewards less `kl_coef` times each trajectory's KL summed over its sampled tokens (nats); `algo.kl_in=reward`.

    It is applied before the advantages, so the penalty is centred with the group (InstructGPT, arXiv:2203.02155,
    equation 2, as an outcome reward). A missing reward stays missing.
    """
    if len(rewards) != len(kl_sums):
        raise ValueError(f"{len(rewards)} rewards, but {len(kl_sums)} KL sums")
    pairs = zip(rewards, kl_sums, strict=True)
    return [None if reward is None else reward - kl_coef * kl for reward, kl in pairs]


def overlong_penalty(length_tokens: int, max_tokens: int, share: float, penalty: float) -> float:
    """What a trajectory of `length_tokens` is charged; `share` of `max_tokens` is the buffer (0: off).

    DAPO, arXiv:2503.14476, section 3.4, equation 13, with the buffer given as a share of the budget.
    """
    buffer_tokens = share * max_tokens
    if buffer_tokens <= 0:
        return 0.0
    over = length_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(1.0, max(0.0, over / buffer_tokens))


def filtered(status: str, overlong_filter: bool) -> bool:
    """Whether `algo.overlong_filter` masks a trajectory of this status.

    DAPO, arXiv:2503.14476, section 3.4, overlong filtering: the loss of truncated samples is masked.
    """
    return overlong_filter and status in CUT_SHORT


def advantages(
    rewards: Sequence[float | None],
    in_baseline: Sequence[bool],
    config: AlgoConfig,
    graded: Sequence[float | None] | None = None,
) -> list[float]:
    """One advantage per member of one group, in the order given; dimensionless.

    - grpo: (r - mean) / (std + 1e-6), and without the division if `normalize_std` is off
      (DeepSeekMath, arXiv:2402.03300, section 4.1.2).
    - dr_grpo: r - mean (Understanding R1-Zero-Like Training, arXiv:2503.20783, section 3.2).
    - rloo: n / (n - 1) * (r - mean), which is r minus the mean of the others
      (Back to Basics, arXiv:2402.14740, section 3.3).

    `graded` are the rewards before penalties were taken off; None: there are none. A member without a reward counts as
    outside the baseline. Raises ValueError where the lengths differ, where a
    reward is not finite, and for the estimators of `batch_advantages`, which need more than one group.
    """
    if _over_batch(config):
        raise ValueError(f"algo.advantage={config.advantage} normalizes over the batch: use batch_advantages")
    members = _members_of(rewards, in_baseline)
    if not _varies(list(members.values())):
        return [0.0] * len(rewards)
    scale, mean = group_scale(rewards, in_baseline, config, graded), fmean(members.values())
    return [scale * (members[i] - mean) if i in members else 0.0 for i in range(len(rewards))]


def group_scale(
    rewards: Sequence[float | None],
    in_baseline: Sequence[bool],
    config: AlgoConfig,
    graded: Sequence[float | None] | None = None,
) -> float:
    """What `advantages` multiplies the group's centred rewards with; 1 where they are equal."""
    members = list(_members_of(rewards, in_baseline).values())
    compared = members if graded is None else list(_members_of(graded, in_baseline).values())
    return _scale(members, config, normalizes=_varies(compared)) if _varies(members) else 1.0


def batch_advantages(
    groups: Sequence[Group], config: AlgoConfig, graded: Sequence[Sequence[float | None]] | None = None
) -> list[list[float]]:
    """One advantage per member of each group of (rewards, in_baseline), in the order given; dimensionless.

    - reinforce_pp: (r - mean of the batch) / (std of the batch + 1e-6) (REINFORCE++, arXiv:2501.03262v9, section 3,
      global advantage normalization).
    - reinforce_pp_baseline: r - mean of the group, then the same (section 3, with baseline). The batch's mean is 0 by
      then, so only the division is left.
    - `normalize_std` off leaves the division out of both. Every other estimator: `advantages` of each group.

    The paper takes the KL penalty off the reward token by token, from each token on; `algo.kl_in=reward` takes the
    trajectory's sum off its reward, which has the same expected gradient (earlier penalties do not depend on later
    tokens) and more variance. `graded`: each group's rewards before penalties were taken off. Raises ValueError as
    `advantages` does.
    """
    before = graded if graded is not None else [rewards for rewards, _ in groups]
    if not _over_batch(config):
        return [
            advantages(rewards, in_baseline, config, uncharged)
            for (rewards, in_baseline), uncharged in zip(groups, before, strict=True)
        ]
    members = _compared(groups, config)
    pairs = zip(before, groups, strict=True)
    compared = _compared([(uncharged, in_baseline) for uncharged, (_, in_baseline) in pairs], config)
    normalizes = _varies([value for group in compared for value in group.values()])
    shift, scale = _moments([value for group in members for value in group.values()], config, normalizes=normalizes)
    return [
        [scale * (group[i] - shift) if i in group else 0.0 for i in range(len(rewards))]
        for (rewards, _), group in zip(groups, members, strict=True)
    ]


def is_degenerate(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> bool:
    """True where a group has nothing to compare: every advantage is 0 whatever the estimator of a group."""
    return not _varies(list(_members_of(rewards, in_baseline).values()))


def _over_batch(config: AlgoConfig) -> bool:
    return config.advantage in (Advantage.reinforce_pp, Advantage.reinforce_pp_baseline)


def _members_of(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> dict[int, float]:
    """The rewards of the baseline's members by their place in the group. Raises ValueError as `advantages` does."""
    if len(rewards) != len(in_baseline):
        raise ValueError(f"{len(rewards)} rewards, but {len(in_baseline)} baseline flags")
    members = {i: r for i, (r, kept) in enumerate(zip(rewards, in_baseline, strict=True)) if kept and r is not None}
    if not all(math.isfinite(r) for r in members.values()):
        raise ValueError(f"A reward is not finite: {list(members.values())}")
    return members


def _varies(rewards: list[float]) -> bool:
    return len(rewards) >= 2 and max(rewards) - min(rewards) > _MIN_REWARD_SPREAD


def _compared(groups: Sequence[Group], config: AlgoConfig) -> list[dict[int, float]]:
    """What the batch is normalized over, by the place in its group."""
    members = [_members_of(rewards, in_baseline) for rewards, in_baseline in groups]
    return [_less_mean(group) for group in members] if config.advantage is Advantage.reinforce_pp_baseline else members


def _scale(rewards: list[float], config: AlgoConfig, *, normalizes: bool) -> float:
    if config.advantage is Advantage.rloo:
        return len(rewards) / (len(rewards) - 1)
    if config.advantage is Advantage.grpo and config.normalize_std and normalizes:
        return 1.0 / (_sample_std(rewards) + _STD_EPS)
    return 1.0


def _sample_std(rewards: Sequence[float]) -> float:
    """Of at least two values."""
    mean = fmean(rewards)
    return math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))


def _less_mean(group: dict[int, float]) -> dict[int, float]:
    """A group of less than two members, or of equal rewards, has no information of its own: all 0."""
    values = list(group.values())
    if not _varies(values):
        return dict.fromkeys(group, 0.0)
    mean = fmean(values)
    return {i: value - mean for i, value in group.items()}


def _moments(values: list[float], config: AlgoConfig, *, normalizes: bool) -> tuple[float, float]:
    """What to take off and what to multiply with."""
    if not _varies(values):
        return 0.0, 0.0
    shift = 0.0 if config.advantage is Advantage.reinforce_pp_baseline else fmean(values)
    return shift, 1.0 / (_sample_std(values) + _STD_EPS) if config.normalize_std and normalizes else 1.0
