"""Leave-one-out advantages whose push does not grow with a trajectory's length.

A reward less the mean of the others (RLOO: Back to Basics, arXiv:2402.14740, section 3.3), times the group's mean
length over the trajectory's own (the 1 / |o_i| of GRPO, arXiv:2402.03300, equation 3, here in the advantage). Under
algo.loss_aggregation=token_mean each trajectory of a group then pulls with its own advantage, however long it is.
"""

from collections.abc import Sequence

from swe_rl.api import RewardGroup


class LengthLoo:
    needs_group = True

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        return [self._of_group(group) for group in groups]

    def _of_group(self, group: RewardGroup) -> list[float]:
        members = group.members
        values = [0.0] * len(group.rewards)
        if len(members) < 2:
            return values
        # A trajectory of no token at all has nothing to push.
        lengths = {place: max(1, group.sampled_tokens[place]) if group.sampled_tokens else 1 for place in members}
        mean_length = sum(lengths.values()) / len(lengths)
        total = sum(members.values())
        for place, reward in members.items():
            others_mean = (total - reward) / (len(members) - 1)
            values[place] = (reward - others_mean) * mean_length / lengths[place]
        return values
