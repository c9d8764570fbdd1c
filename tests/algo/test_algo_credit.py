"""What turns bring: the published formulas, one member at a time, and what may never happen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.credit import gae, to_go, turn_advantages
from swe_rl.algo.loss import value_loss
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig

EACH = (AdvantageKind.grpo, AdvantageKind.dr_grpo, AdvantageKind.rloo)
_group = st.lists(st.lists(st.floats(-5, 5), max_size=5), min_size=1, max_size=6)


def reference(rewards, kept, discount, scale, leave_one_out):
    """Term by term."""
    returns = [[sum(discount ** (k - t) * m[k] for k in range(t, len(m))) for t in range(len(m))] for m in rewards]
    result = []
    for i, member in enumerate(returns):
        row = []
        for t, value in enumerate(member):
            peers = [r[t] for j, r in enumerate(returns) if kept[j] and len(r) > t]
            others = [r[t] for j, r in enumerate(returns) if kept[j] and len(r) > t and j != i]
            if not kept[i] or len(peers) < 2:
                row.append(0.0)
            else:
                row.append(scale * (value - np.mean(others if leave_one_out else peers)))
        result.append(row)
    return result


@given(_group, st.floats(0.1, 1.0), st.floats(0.1, 3.0), st.sampled_from(EACH), st.data())
def test_they_are_the_reference(rewards, discount, scale, advantage, data):
    kept = data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))
    algo = AlgoConfig(advantage=advantage, discount=discount)
    expected = reference(rewards, kept, discount, scale, advantage is AdvantageKind.rloo)
    for got, wanted in zip(turn_advantages(rewards, kept, algo, scale), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-9)


@given(_group)
def test_a_turns_members_sum_to_zero(rewards):
    advantages = turn_advantages(rewards, [True] * len(rewards), AlgoConfig(), 2.0)
    for turn in range(5):
        assert sum(member[turn] for member in advantages if len(member) > turn) == pytest.approx(0.0, abs=1e-9)


def test_a_reward_says_nothing_of_what_came_after():
    assert to_go([0.0, -1.0, 0.0, 0.0], 0.5) == [-0.5, -1.0, 0.0, 0.0]


def test_rewards_of_zero_are_advantages_of_zero():
    assert turn_advantages([[0.0] * 3, [0.0] * 2], [True, True], AlgoConfig(), 7.0) == [[0.0] * 3, [0.0] * 2]


def test_a_turn_that_one_member_alone_reached_has_no_advantage():
    assert turn_advantages([[1.0, 1.0], [0.0]], [True, True], AlgoConfig(), 1.0) == [[1.0, 0.0], [-1.0]]


def gae_reference(rewards, values, discount, lam):
    """arXiv:1506.02438, equation 16, term by term."""
    ends = [*values, 0.0][1:]
    deltas = [r + discount * after - v for r, after, v in zip(rewards, ends, values, strict=True)]
    count = len(rewards)
    return [sum((discount * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), max_size=12), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_gae_is_the_reference(pairs, discount, lam):
    rewards, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert gae(rewards, values, discount, lam) == pytest.approx(gae_reference(rewards, values, discount, lam), abs=1e-6)


def test_gae_without_a_critic_is_the_return_and_of_a_perfect_one_nothing():
    rewards = [0.0, 1.0, 0.0, 2.0]
    assert list(gae(rewards, [0.0] * 4, 1.0, 1.0)) == [3.0, 3.0, 2.0, 2.0] == to_go(rewards, 1.0)
    assert list(gae(rewards, to_go(rewards, 0.5), 0.5, 0.3)) == [0.0] * 4


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=1, max_size=9), st.sampled_from([0.0, 0.1, 0.5]))
def test_the_value_loss_is_the_reference(triples, clip):
    values, old, targets = (np.array(column) for column in zip(*triples, strict=True))
    near = np.clip(values, old - clip, old + clip) if clip else values
    expected = 0.5 * np.maximum((values - targets) ** 2, (near - targets) ** 2)
    got = value_loss(*(torch.from_numpy(array) for array in (values, old, targets)), clip)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-9)
