"""The advantages: which attempts of a group become more likely."""

from collections.abc import Sequence

from swe_rl.api import RewardGroup


class MyPackageAdvantage:
    """Each reward less the mean of the other rewards of its group."""

    needs_group = True  # rollout.n=1 is refused

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        return [self._compare(group) for group in groups]

    def _compare(self, group: RewardGroup) -> list[float]:
        members = group.members
        values = [0.0] * len(group.rewards)
        for place, reward in members.items():
            others = [other for name, other in members.items() if name != place]
            if others:
                values[place] = reward - sum(others) / len(others)
        return values
