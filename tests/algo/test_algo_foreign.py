"""What estimators of somebody's own say of equal rewards, and what they are told."""

from statistics import fmean

import numpy as np
import pytest
import torch

from swe_rl.algo.foreign.advantage import ask_estimator
from swe_rl.algo.own_algorithm import RewardGroup


class LessMean:
    def of(self, group):
        return [reward - fmean(group.rewards) for reward in group.rewards]

    def advantages(self, groups):
        return [self.of(group) for group in groups]


class ByDeviation(LessMean):
    def of(self, group):
        rewards = np.array(group.rewards)
        return ((rewards - rewards.mean()) / (rewards.std() + 1e-8)).tolist()


class InFloat32(LessMean):
    def of(self, group):
        rewards = torch.tensor(group.rewards)
        return ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()


class OverTheBatch(LessMean):
    def advantages(self, groups):
        joined = np.concatenate([group.rewards for group in groups])
        return [((np.array(group.rewards) - joined.mean()) / (joined.std() + 1e-6)).tolist() for group in groups]


class Reinforce(LessMean):
    def of(self, group):
        return list(group.rewards)


class ByLength(LessMean):
    """Of equal rewards the shorter trajectory is the better one, a little."""

    def of(self, group):
        return [-1e-9 * (tokens - fmean(group.sampled_tokens)) for tokens in group.sampled_tokens]


def group(*rewards, **more):
    return RewardGroup(rewards, (True,) * len(rewards), rewards, **more)


@pytest.mark.parametrize("estimator", [LessMean(), ByDeviation(), InFloat32()])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, -0.7, 1e-6 / 3, 1e6 / 3])
def test_rounding_of_equal_rewards_is_nothing_however_it_was_computed(estimator, reward):
    for number in (2, 3, 6, 7, 48, 64):
        equal, mixed = group(*[reward] * number), group(0.0, reward, reward)
        got = ask_estimator(estimator, [equal, mixed])
        assert got[0] == [0.0] * number
        assert got[1] == estimator.of(mixed) and any(got[1])


def test_what_compares_more_than_the_rewards_of_a_group_is_kept():
    equal, others = group(0.1, 0.1, 0.1), group(0.7, 0.3, 0.2)
    assert ask_estimator(Reinforce(), [equal]) == [[0.1, 0.1, 0.1]]
    assert ask_estimator(OverTheBatch(), [equal, others]) == OverTheBatch().advantages([equal, others])
    assert ask_estimator(OverTheBatch(), [equal, equal]) == [[0.0] * 3] * 2
    longer = group(0.1, 0.1, sampled_tokens=(10, 30))
    assert ask_estimator(ByLength(), [longer]) == [pytest.approx([1e-8, -1e-8])]


class LessAHalf(Reinforce):
    needs_group = False

    def of(self, group):
        return [reward - 0.5 for reward in group.rewards]


@pytest.mark.parametrize("rewards", [(0.6, 0.6), (0.6,), (1.4, 1.4, 1.4)])
def test_what_needs_no_group_is_believed(rewards):
    """The power of two next to these rewards is a place where the method says 0."""
    assert ask_estimator(LessAHalf(), [group(*rewards)]) == [[reward - 0.5 for reward in rewards]]


def test_it_is_asked_again_only_where_rounding_could_have_answered():
    asked = []

    class Counts(Reinforce):
        def advantages(self, groups):
            asked.append(groups)
            return super().advantages(groups)

    ask_estimator(Counts(), [group(1.0, 1.0), group(0.0, 0.1)])
    assert len(asked) == 1
    ask_estimator(Counts(), [group(0.1, 0.1), group(0.0, 0.1)])
    exact, other = asked[2]
    assert exact.rewards == (0.125, 0.125) and exact.graded == (0.1, 0.1)
    assert other == group(0.0, 0.1)


class LessTheMean:
    def advantages(self, groups):
        return [[reward - fmean(group.rewards) for reward in group.rewards] for group in groups]


def test_a_member_at_the_mean_of_a_mixed_group_teaches_nothing():
    """0.1, 0.2 and 0.3 have a mean that rounds to another number than 0.2."""
    rewards = (0.1, 0.2, 0.3)
    mixed = RewardGroup(rewards, (True,) * 3, rewards)
    assert LessTheMean().advantages([mixed])[0][1] != 0.0
    [answer] = ask_estimator(LessTheMean(), [mixed])
    assert answer[1] == 0.0
    assert answer[0] < 0.0 < answer[2]
