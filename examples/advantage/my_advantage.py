"""Advantages of your own: each reward against the best of the others, instead of against their mean."""

from collections.abc import Sequence

from swe_rl.api import RewardGroup


class MyAdvantage:
    """Reward less a share of the best other reward of the group, and of its mean the rest."""

    needs_group = True  # rules refuse rollout.n=1

    def __init__(self, best_share: float = 0.2) -> None:
        self._best_share = best_share

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        return [self._of_group(group) for group in groups]

    def _of_group(self, group: RewardGroup) -> list[float]:
        members = group.members  # place to reward, of those that count
        values = [0.0] * len(group.rewards)
        if len(members) < 2 or len(set(members.values())) == 1:
            return values  # nothing to compare
        mean = sum(members.values()) / len(members)
        best = max(members.values())
        for place, reward in members.items():
            values[place] = reward - (self._best_share * best + (1.0 - self._best_share) * mean)
        return values
