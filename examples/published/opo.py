"""OPO's advantages: each reward less a mean of the group's in which a long trajectory counts more.

On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585, section 3: the baseline of least variance is the mean of
rewards weighted by the squared norms of the gradients, which grow with the length: sum(l_i r_i) / sum(l_i).
"""

from collections.abc import Sequence

from swe_rl.api import RewardGroup


class Opo:
    needs_group = True

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        return [self._of_group(group) for group in groups]

    def _of_group(self, group: RewardGroup) -> list[float]:
        members = group.members
        lengths = {place: float(group.sampled_tokens[place]) if group.sampled_tokens else 1.0 for place in members}
        total = sum(lengths.values())
        values = [0.0] * len(group.rewards)
        if len(members) < 2 or total == 0.0:
            return values
        baseline = sum(lengths[place] * reward for place, reward in members.items()) / total
        for place, reward in members.items():
            values[place] = reward - baseline
        return values
