"""Group-relative advantages: how much better a trajectory did than the others of its group.

Invariants:
- One call sees one group; groups never mix, however uneven they are.
- A member outside the baseline gets 0 and enters neither mean nor standard deviation.
- The advantages of a group's baseline members sum to 0.
- A group that cannot teach anything (fewer than two baseline members, or equal rewards) is degenerate: all zeros.
- "Standard deviation" is the sample's (n - 1), as in the common implementations of GRPO; the paper leaves it open.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from swe_rl.config.choices import Advantage
from swe_rl.config.schema import AlgoConfig

STD_EPS = 1e-6
MIN_REWARD_SPREAD = 1e-8


def advantages(rewards: Sequence[float | None], in_baseline: Sequence[bool], config: AlgoConfig) -> list[float]:
    """One advantage per member of one group, in the order given; dimensionless.

    - grpo: (r - mean) / (std + 1e-6), and without the division if `normalize_std` is off
      (DeepSeekMath, arXiv:2402.03300, section 4.1.2).
    - dr_grpo: r - mean (Understanding R1-Zero-Like Training, arXiv:2503.20783, section 3.2).
    - rloo: n / (n - 1) * (r - mean), which is r minus the mean of the others
      (Back to Basics, arXiv:2402.14740, section 3.3).

    A member without a reward counts as outside the baseline. Raises ValueError where the lengths differ, where a
    reward is not finite, and for the estimators of `batch_advantages`, which need more than one group.
    """
    if over_batch(config):
        raise ValueError(f"algo.advantage={config.advantage} normalizes over the batch: use batch_advantages")
    members = members_of(rewards, in_baseline)
    if not _varies(list(members.values())):
        return [0.0] * len(rewards)
    scale = _scale(list(members.values()), config)
    mean = fmean(members.values())
    return [scale * (members[i] - mean) if i in members else 0.0 for i in range(len(rewards))]


def is_degenerate(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> bool:
    """True where a group has nothing to compare: every advantage is 0 whatever the estimator of a group."""
    return not _varies(list(members_of(rewards, in_baseline).values()))


def over_batch(config: AlgoConfig) -> bool:
    return config.advantage in (Advantage.reinforce_pp, Advantage.reinforce_pp_baseline)


def members_of(rewards: Sequence[float | None], in_baseline: Sequence[bool]) -> dict[int, float]:
    """The rewards of the baseline's members by their place in the group. Raises ValueError as `advantages` does."""
    if len(rewards) != len(in_baseline):
        raise ValueError(f"{len(rewards)} rewards, but {len(in_baseline)} baseline flags")
    members = {i: r for i, (r, kept) in enumerate(zip(rewards, in_baseline, strict=True)) if kept and r is not None}
    if not all(math.isfinite(r) for r in members.values()):
        raise ValueError(f"A reward is not finite: {list(members.values())}")
    return members


def _varies(rewards: list[float]) -> bool:
    return len(rewards) >= 2 and max(rewards) - min(rewards) > MIN_REWARD_SPREAD


def _scale(rewards: list[float], config: AlgoConfig) -> float:
    if config.advantage is Advantage.rloo:
        return len(rewards) / (len(rewards) - 1)
    if config.advantage is Advantage.grpo and config.normalize_std:
        return 1.0 / (sample_std(rewards) + STD_EPS)
    return 1.0


def sample_std(rewards: Sequence[float]) -> float:
    """Of at least two values."""
    mean = fmean(rewards)
    return math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
