import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.advantage import batch_advantages, compute_advantages, is_degenerate
from swe_rl.algo.credit import turn_advantages
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig

GRPO = AlgoConfig(advantage=AdvantageKind.grpo)
GRPO_NO_STD = AlgoConfig(advantage=AdvantageKind.grpo, normalize_std=False)
DR_GRPO = AlgoConfig(advantage=AdvantageKind.dr_grpo)
RLOO = AlgoConfig(advantage=AdvantageKind.rloo, normalize_std=False)
EVERY = st.sampled_from([GRPO, GRPO_NO_STD, DR_GRPO, RLOO])
REWARD = st.floats(-10, 10).map(lambda r: round(r, 3))
MEMBERS = st.lists(st.tuples(REWARD, st.booleans()), min_size=1, max_size=12)


def split(members):
    return [reward for reward, _ in members], [kept for _, kept in members]


def test_grpo_divides_by_the_sample_std():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.5])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    assert compute_advantages(rewards.tolist(), [True] * 5, GRPO) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("config", [GRPO_NO_STD, DR_GRPO])
def test_without_std_it_is_the_centred_reward(config):
    assert compute_advantages([1.0, 0.0, 0.0, 0.0], [True] * 4, config) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_rloo_is_the_reward_less_the_mean_of_the_others():
    rewards = [1.0, 0.0, 0.5, -1.0]
    others = [(sum(rewards) - r) / 3 for r in rewards]
    expected = [r - o for r, o in zip(rewards, others, strict=True)]
    assert compute_advantages(rewards, [True] * 4, RLOO) == pytest.approx(expected)


def test_a_normalized_rloo_divides_by_the_groups_deviation():
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    others = np.array([(rewards.sum() - reward) / 3 for reward in rewards])
    expected = (rewards - others) / (rewards.std(ddof=1) + 1e-6)
    normalized = AlgoConfig(advantage=AdvantageKind.rloo)
    assert compute_advantages(rewards.tolist(), [True] * 4, normalized) == pytest.approx(expected.tolist())


def test_the_sign_convention_of_the_reward_does_not_matter_to_grpo():
    kept = [True] * 4
    zero_one, plus_minus = compute_advantages([1, 0, 0, 1], kept, GRPO), compute_advantages([1, -1, -1, 1], kept, GRPO)
    assert zero_one == pytest.approx(plus_minus, rel=1e-5)


def test_members_outside_of_the_baseline_get_nothing_and_change_nothing():
    full = compute_advantages([1.0, 0.0, 1.0], [True] * 3, GRPO)
    more = compute_advantages([1.0, 99.0, 0.0, None, 1.0], [True, False, True, True, True], GRPO)
    assert more == [full[0], 0.0, full[1], 0.0, full[2]]


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([1.0, 1.0, 1.0], [True] * 3),
        ([1.0, 0.0], [True, False]),
        ([None, 1.0], [True, True]),
        ([], []),
        ([0.1 + 0.2, 0.3], [True] * 2),
    ],
)
@pytest.mark.parametrize("config", [GRPO, DR_GRPO, RLOO])
def test_degenerate_groups_teach_nothing(rewards, kept, config):
    assert is_degenerate(rewards, kept)
    assert compute_advantages(rewards, kept, config) == [0.0] * len(rewards)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="2 rewards, but 1"):
        compute_advantages([1.0, 0.0], [True], GRPO)
    with pytest.raises(ValueError, match="not finite"):
        compute_advantages([math.nan, 0.0], [True, True], GRPO)
    with pytest.raises(ValueError, match="larger than 1e\\+12"):
        compute_advantages([1e308, -1e308], [True, True], GRPO)


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=8), EVERY)
def test_the_largest_rewards_leave_no_number_that_float32_lacks(rewards, config):
    everyone = [True] * len(rewards)
    [advantages] = batch_advantages([(rewards, everyone)], config)
    turns = turn_advantages([[reward] * 50 for reward in rewards], everyone, config, 1.0)
    squares = np.square(np.array([*advantages, *(value for turn in turns for value in turn)], np.float32))
    assert np.isfinite(squares.sum())


@given(MEMBERS, EVERY)
def test_advantages_sum_to_zero(members, config):
    rewards, kept = split(members)
    assert math.fsum(compute_advantages(rewards, kept, config)) == pytest.approx(0.0, abs=1e-7)


@given(MEMBERS, EVERY, st.integers(-20, 20))
def test_a_shift_of_all_rewards_changes_nothing(members, config, shift):
    rewards, kept = split(members)
    shifted = [reward + shift for reward in rewards]
    assert compute_advantages(shifted, kept, config) == pytest.approx(
        compute_advantages(rewards, kept, config), abs=1e-5
    )


@given(MEMBERS, EVERY)
def test_the_better_reward_has_the_larger_advantage(members, config):
    rewards, kept = split(members)
    got = compute_advantages(rewards, kept, config)
    pairs = sorted((reward, advantage) for reward, advantage, k in zip(rewards, got, kept, strict=True) if k)
    assert all(a[1] <= b[1] + 1e-12 for a, b in zip(pairs, pairs[1:], strict=False))


@given(MEMBERS, EVERY)
def test_degenerate_means_all_zero(members, config):
    rewards, kept = split(members)
    assert is_degenerate(rewards, kept) == (not any(compute_advantages(rewards, kept, config)))
