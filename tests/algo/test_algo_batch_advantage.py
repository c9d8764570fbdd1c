"""Advantages over a whole batch against the paper's formula, and what they must not do."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swe_rl.algo.advantage import batch_advantages, compute_advantages
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig

PP, BASELINE = (AlgoConfig(advantage=one) for one in (AdvantageKind.reinforce_pp, AdvantageKind.reinforce_pp_baseline))
EVERY = st.sampled_from(
    [AlgoConfig(advantage=one, normalize_std=std) for one in AdvantageKind for std in (True, False)]
)
REWARD = st.floats(-10, 10).map(lambda r: round(r, 3))
GROUP = st.lists(st.tuples(REWARD | st.none(), st.booleans()), min_size=1, max_size=6)
GROUPS = st.lists(GROUP, min_size=1, max_size=5)


def split(groups):
    return [([reward for reward, _ in group], [kept for _, kept in group]) for group in groups]


def whole(groups):
    return [(rewards, [True] * len(rewards)) for rewards in groups]


REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.5, 0.0], [1.0, 1.0, 1.0]]


def test_they_are_the_papers(reference):
    for config, by_hand in {PP: reference.reinforce_pp_advantages, BASELINE: None}.items():
        by_hand = by_hand or reference.reinforce_pp_baseline_advantages
        for got, expected in zip(batch_advantages(whole(REWARDS), config), by_hand(REWARDS), strict=True):
            assert got == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_group_s_estimators_see_one_group_at_a_time(reference):
    got = batch_advantages(whole(REWARDS), AlgoConfig())
    assert got[0] == pytest.approx(reference.grpo_advantages(REWARDS[0]).tolist())
    assert got[1] == pytest.approx(reference.grpo_advantages(REWARDS[1]).tolist())
    rloo = batch_advantages(whole(REWARDS), AlgoConfig(advantage=AdvantageKind.rloo, normalize_std=False))
    assert rloo[0] == pytest.approx(reference.rloo_advantages(REWARDS[0]).tolist())


def test_without_group_baseline_a_group_of_equal_rewards_still_teaches():
    solved, failed = batch_advantages(whole([[1.0, 1.0], [0.0, 0.0]]), PP)
    assert solved == pytest.approx([math.sqrt(3) / 2] * 2, rel=1e-5) and failed == pytest.approx([-solved[0]] * 2)


def test_with_group_baseline_it_stays_at_exactly_zero():
    assert batch_advantages(whole([[0.1 + 0.2, 0.3], [1.0, 0.0, 0.0]]), BASELINE)[0] == [0.0, 0.0]


@pytest.mark.parametrize("config", [PP, BASELINE])
def test_nothing_to_compare(config):
    assert batch_advantages([], config) == []
    assert batch_advantages(whole([[1.0], [1.0, 1.0]]), config) == [[0.0], [0.0, 0.0]]
    assert batch_advantages([([1.0, None], [False, True])], config) == [[0.0, 0.0]]


def test_one_group_is_not_enough_for_them():
    with pytest.raises(ValueError, match="batch_advantages"):
        compute_advantages([1.0, 0.0], [True, True], PP)


@given(GROUPS, EVERY)
def test_the_sum_over_the_batch_is_zero(groups, config):
    assert math.fsum(a for one in batch_advantages(split(groups), config) for a in one) == pytest.approx(0, abs=1e-6)


@given(GROUPS, EVERY)
def test_with_a_baseline_of_the_group_each_group_s_sum_is_zero(groups, config):
    assume(config.advantage is not AdvantageKind.reinforce_pp)
    assert all(math.fsum(one) == pytest.approx(0, abs=1e-6) for one in batch_advantages(split(groups), config))


@given(GROUPS, EVERY, st.integers(-20, 20))
def test_a_shift_of_all_rewards_changes_nothing(groups, config, shift):
    moved = [[(None if reward is None else reward + shift, kept) for reward, kept in group] for group in groups]
    for one, other in zip(batch_advantages(split(groups), config), batch_advantages(split(moved), config), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@given(GROUPS, st.sampled_from([PP, BASELINE]), st.sampled_from([0.5, 2.0, 7.0]))
def test_the_scale_of_the_rewards_does_not_matter(groups, config, scale):
    plain = batch_advantages(split(groups), config)
    assume(max((abs(reward) for group in groups for reward, kept in group if kept and reward), default=0) > 0.1)
    stretched = [[(None if reward is None else scale * reward, kept) for reward, kept in group] for group in groups]
    for one, other in zip(plain, batch_advantages(split(stretched), config), strict=True):
        assert other == pytest.approx(one, abs=1e-2)


@given(GROUPS, EVERY, REWARD, st.data())
def test_a_member_outside_of_the_baseline_moves_nobody(groups, config, reward, data):
    plain = batch_advantages(split(groups), config)
    where = data.draw(st.integers(0, len(groups) - 1))
    groups = [[*group, (reward, False)] if i == where else group for i, group in enumerate(groups)]
    more = batch_advantages(split(groups), config)
    assert more[where].pop() == 0.0
    assert more == plain


@given(GROUPS, EVERY, st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(groups, config, rng):
    order = list(range(len(groups)))
    rng.shuffle(order)
    plain = batch_advantages(split(groups), config)
    mixed = batch_advantages(split([groups[i] for i in order]), config)
    for place, i in enumerate(order):
        assert mixed[place] == pytest.approx(plain[i], abs=1e-9)


@given(GROUPS)
def test_over_the_batch_the_spread_is_one(groups):
    config, pairs = PP, split(groups)
    values = [r for rewards, kept in pairs for r, k in zip(rewards, kept, strict=True) if k and r is not None]
    assume(len(values) >= 2 and np.std(values, ddof=1) > 0.1)
    got = [
        a
        for (rewards, kept), group in zip(pairs, batch_advantages(pairs, config), strict=True)
        for a, r, k in zip(group, rewards, kept, strict=True)
        if k and r is not None
    ]
    assert np.std(got, ddof=1) == pytest.approx(1.0, rel=1e-4)
