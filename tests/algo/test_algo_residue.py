"""What rounding leaves over of equal numbers teaches nothing; what is small and real stays."""

import numpy as np
import pytest

from swe_rl.algo.advantage import batch_advantages, compute_advantages, group_scale, is_degenerate
from swe_rl.algo.credit import of_turns, turn_advantages
from swe_rl.algo.residue import FLOAT32, without_residue
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig

OF_GROUPS = [
    AlgoConfig(advantage=one, normalize_std=std)
    for one in (AdvantageKind.grpo, AdvantageKind.dr_grpo, AdvantageKind.rloo)
    for std in (True, False)
]
OF_BATCHES = [
    AlgoConfig(advantage=one, normalize_std=std)
    for one in (AdvantageKind.reinforce_pp, AdvantageKind.reinforce_pp_baseline)
    for std in (True, False)
]
SIZES = (1e-6, 0.1, 1 / 3, 0.7, 1e6 / 3)
NUMBERS = (2, 3, 5, 6, 7, 12, 48, 64)


def rounded_apart(value, number):
    """Numbers that are equal on paper: the value itself, and sums that make it."""
    third = value / 3
    return [(value, third + third + third, value * 1.1 - value * 0.1)[i % 3] for i in range(number)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("config", OF_GROUPS + OF_BATCHES)
def test_equal_rewards_of_any_size_and_number_teach_exactly_nothing(config, size):
    for number in NUMBERS:
        for rewards in ([size] * number, rounded_apart(size, number), rounded_apart(-size, number)):
            kept = [True] * number
            assert is_degenerate(rewards, kept)
            assert batch_advantages([(rewards, kept)] * 2, config) == [[0.0] * number] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("config", OF_GROUPS + OF_BATCHES)
def test_a_difference_of_a_thousand_millionth_is_kept(config, size):
    for number in NUMBERS:
        rewards, kept = [size] * (number - 1) + [size * (1 + 1e-9)], [True] * number
        assert not is_degenerate(rewards, kept)
        [got] = batch_advantages([(rewards, kept)], config)
        assert got[-1] > 0 > got[0]


def test_a_member_at_the_mean_of_others_that_differ_has_nothing_to_learn():
    rewards = [0.0, 0.1 + 0.2, 0.6]
    assert sum(rewards) / 3 != rewards[1]  # rounding alone
    assert compute_advantages(rewards, [True] * 3, AlgoConfig())[1] == 0.0


def test_groups_of_another_size_do_not_decide_what_is_small():
    algo = AlgoConfig(advantage=AdvantageKind.reinforce_pp_baseline, normalize_std=False)
    groups = [([1e6, 0.0], [True, True]), ([1e-7, 2e-7], [True, True])]
    assert batch_advantages(groups, algo)[1] == pytest.approx([-5e-8, 5e-8])


def test_penalties_that_cancel_leave_nothing_to_divide():
    """0.3 less 0.1 and 0.2 against nothing at all: apart by 3e-17, whose own size would make that a difference."""
    charged, graded = [0.3 - 0.1 - 0.2, 0.0], [0.3, 0.0]
    assert charged[0] != 0.0
    assert compute_advantages(charged, [True, True], AlgoConfig(), graded) == [0.0, 0.0]
    assert group_scale(charged, [True, True], AlgoConfig(), graded) == 1.0


@pytest.mark.parametrize("advantage", [AdvantageKind.grpo, AdvantageKind.rloo])
@pytest.mark.parametrize("reward", [-0.1, 0.05, 0.7, 1e-6 / 3, 1e6 / 3])
def test_equal_turns_teach_exactly_nothing(advantage, reward):
    algo = AlgoConfig(advantage=advantage, discount=0.97)
    for number in NUMBERS:
        for turns in (1, 3, 40):
            got = turn_advantages([[reward] * turns] * number, [True] * number, algo, 2.0)
            assert got == [[0.0] * turns] * number


def test_turns_that_cancel_are_as_nothing_at_all():
    rewards = [[0.1, 0.2, -0.3], [0.0, 0.0, 0.0], [0.3, -0.3, 0.0]]
    got = turn_advantages(rewards, [True] * 3, AlgoConfig(), 1.0)
    assert [member[0] for member in got] == [0.0, 0.0, 0.0] and got[0][2] < 0


def test_of_a_turn_s_and_its_trajectory_s_advantage_rounding_alone_is_nothing():
    assert of_turns(0.1 + 0.2, [-0.3, 0.3]).tolist() == [0.0, 0.6000000000000001]
    assert of_turns(0.0, [1e-9]).tolist() == [1e-9]
    assert of_turns(0.5, []).tolist() == []


def test_what_is_small_for_one_term_is_not_for_another():
    got = without_residue([1e-7, 1e-7, -1e-7], [1.0, 1e-3, 0.0], FLOAT32)
    np.testing.assert_array_equal(got, [0.0, 1e-7, -1e-7])
