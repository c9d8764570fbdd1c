"""Takes advantages of somebody's own, in place of `algo.advantage`.

Invariants:
- A method sees all groups of a step at once; rewards have the penalties of `algo` taken off already.
- A member outside of the baseline has advantage 0, whatever the method says.
- A group of equal rewards teaches nothing where the method compares nothing but rewards, however it rounds. A method
  that needs no group to compare with is believed.
- What is no finite number, or of another length than was asked for, ends the run with the class's name.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from swe_rl.algo.advantage import is_degenerate
from swe_rl.algo.own_algorithm import Advantage, RewardGroup
from swe_rl.algo.residue import without_residue
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AdvantageConfig, AlgoConfig
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import (
    LONGEST_S,
    NOBODY,
    ExtensionFailure,
    failing_as,
    make_extension,
    require_numbers,
)


class ForeignAdvantage:
    def __init__(self, advantage: Advantage, maker: Foreign, *, limit_s: float = LONGEST_S) -> None:
        self.needs_group = bool(getattr(advantage, "needs_group", True))
        self._advantage = advantage
        self._maker = maker
        self._limit_s = limit_s

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        """Returns one advantage a member of each group. Raises ExtensionFailure."""
        with failing_as(ExtensionFailure, self._maker, "advantages", self._limit_s):
            answer = list(self._advantage.advantages(groups))
        if len(answer) != len(groups):
            raise ExtensionFailure(
                f"{self._maker}: its method advantages must return a list for each of {len(groups)} groups, not "
                f"{len(answer)}"
            )
        return [self._of_group(list(values), group) for values, group in zip(answer, groups, strict=True)]

    def _of_group(self, values: list[float], group: RewardGroup) -> list[float]:
        numbers = require_numbers(self._maker, "advantages", values, len(group.rewards))
        return [number if place in group.members else 0.0 for place, number in enumerate(numbers)]


def ask_estimator(estimator: Advantage, groups: Sequence[RewardGroup]) -> list[list[float]]:
    """Returns the estimator's answers without what rounding alone left over of rewards.

    Of equal rewards an estimator that divides by their deviation makes residue of any size. So it is asked once more,
    with a power of two in place of these rewards, whose mean no rounding touches: where it says 0 then, it meant 0.
    One that needs no group is not asked: reward - 0.5 is 0 at a power of two, too. Raises ExtensionFailure.
    """
    answers = [
        without_residue(answer, _largest_reward(group)).tolist()
        for answer, group in zip(estimator.advantages(groups), groups, strict=True)
    ]
    if not getattr(estimator, "needs_group", True):
        return answers
    exact_groups = [
        _with_exact_mean(group) if any(answer) and is_degenerate(group.rewards, group.in_baseline) else group
        for answer, group in zip(answers, groups, strict=True)
    ]
    if exact_groups == list(groups):
        return answers
    checked = estimator.advantages(exact_groups)
    return [
        answer if exact_group is group or any(exact) else [0.0] * len(answer)
        for answer, exact, group, exact_group in zip(answers, checked, groups, exact_groups, strict=True)
    ]


def _largest_reward(group: RewardGroup) -> float:
    """Returns the largest reward by its size, before penalties or after them; 0 where there is none."""
    return max((abs(reward) for reward in (*group.rewards, *group.graded) if reward is not None), default=0.0)


def _with_exact_mean(group: RewardGroup) -> RewardGroup:
    """Returns a group with the nearest power of two in place of each reward that counts."""
    members = group.members
    places = range(len(group.rewards))
    exact = tuple(_power_of_two(members[place]) if place in members else group.rewards[place] for place in places)
    return replace(group, rewards=exact)


def _power_of_two(reward: float) -> float:
    if reward:
        return math.copysign(2.0 ** round(math.log2(abs(reward))), reward)
    return 0.0


def make_advantage(config: AdvantageConfig, algo: AlgoConfig) -> ForeignAdvantage | None:
    """Returns the user's advantage, or None if `algo.advantage` decides. Raises UserError."""
    advantage, maker = make_extension(ExtensionKind.advantage, config, {"config": algo}, NOBODY)
    if maker is None:
        return None
    return ForeignAdvantage(advantage, maker)
