import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.algo.loss import (
    clipped_surrogate,
    row_weights,
    token_loss,
    token_ratio,
    weighted_logprobs,
    zero_advantage_contributes,
)
from swe_rl.config.choices import KlEstimator, KlPlace, LossAggregation, PolicyLoss
from swe_rl.config.schema import AlgoConfig

TOKEN = st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3))


def by_hand(new, old, advantage, low, high, c):
    """One token at a time, as the papers write it."""
    ratio = np.exp(new - old)
    loss = -min(advantage * ratio, advantage * min(max(ratio, 1 - low), 1 + high))
    if c > 0 and advantage < 0:
        loss = min(loss, -advantage * c)
    return loss


@settings(deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=16), st.sampled_from([0.0, 1.5, 3.0]))
def test_the_surrogate_is_the_papers(tokens, c):
    new, old, advantage = torch.tensor(tokens, dtype=torch.float64).T
    ratio = token_ratio(new, old)
    got = clipped_surrogate(ratio, advantage, 0.2, 0.28, c)
    np.testing.assert_allclose(
        got.loss.numpy(), [by_hand(*token, 0.2, 0.28, c) for token in tokens], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(ratio.numpy(), np.exp((new - old).numpy()), rtol=1e-9)


def test_the_clip_stops_the_gradient_where_the_policy_moved_far_enough():
    new = torch.log(torch.tensor([1.5, 1.25, 0.7, 1.5, 0.7])).requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    got = clipped_surrogate(token_ratio(new, torch.zeros(5)), advantage, 0.2, 0.28)
    got.loss.sum().backward()
    assert got.high.tolist() == [True, False, False, False, False]
    assert got.low.tolist() == [False, False, True, False, False]
    assert (new.grad == 0).tolist() == [True, False, True, False, False]


def test_dual_clip_bounds_a_negative_advantage_only():
    new = torch.log(torch.tensor([5.0, 5.0])).requires_grad_()
    got = clipped_surrogate(token_ratio(new, torch.zeros(2)), torch.tensor([-1.0, 1.0]), 0.2, 0.28, 3.0)
    got.loss.sum().backward()
    assert got.loss.tolist() == pytest.approx([3.0, -1.28])
    assert got.high.tolist() == [True, True] and got.low.tolist() == [False, False]
    assert new.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("policy_loss", list(PolicyLoss))
def test_on_policy_the_gradient_is_reinforce_whatever_the_loss(policy_loss):
    new = torch.tensor([-1.0, -2.0]).requires_grad_()
    advantage, ones = torch.tensor([2.0, -0.5]), torch.ones(2)
    algo = AlgoConfig(policy_loss=policy_loss)
    loss = token_loss(new, new.detach(), advantage, ones, ones, None, algo, torch.zeros(2))
    loss.total.sum().backward()
    assert loss.ratio.tolist() == [1.0, 1.0]
    assert not loss.clipped.any()
    assert new.grad.tolist() == [-2.0, 0.5]


@settings(deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=16), st.sampled_from(list(PolicyLoss)))
def test_a_token_of_advantage_zero_has_no_gradient_and_is_not_clipped(tokens, policy_loss):
    new, old, _ = torch.tensor(tokens, dtype=torch.float64).T
    new = new.clone().requires_grad_()
    ones = torch.ones_like(old)
    algo = AlgoConfig(policy_loss=policy_loss)
    loss = token_loss(new, old, torch.zeros_like(old), ones, ones, None, algo, (new - old).mean().expand_as(old))
    loss.total.sum().backward()
    assert not new.grad.any() and not loss.clipped.any()


@settings(deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=16), st.sampled_from(list(PolicyLoss)))
def test_a_masked_token_has_no_gradient(tokens, policy_loss):
    """The correction of a masked token is 0; nothing of it may leak through the surrogate."""
    new, old, advantage = torch.tensor(tokens, dtype=torch.float64).T
    new = new.clone().requires_grad_()
    kept = torch.arange(len(tokens)) % 2 == 0
    algo = AlgoConfig(policy_loss=policy_loss)
    loss = token_loss(new, old, advantage, new, kept.double(), None, algo, (new - old).mean().expand_as(old))
    loss.total.sum().backward()
    assert not new.grad[~kept].any()


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    new = torch.log(torch.tensor([9.0, 0.1])).requires_grad_()
    got = weighted_logprobs(new, token_ratio(new, torch.zeros(2)), torch.tensor([1.0, -1.0]), 0.5, 3.0)
    got.loss.sum().backward()
    assert new.grad.tolist() == [-4.0, 0.5]
    assert got.high.tolist() == [True, False] and got.low.tolist() == [False, True]


def test_imitation_is_the_cross_entropy_whatever_the_ratio():
    """Other weights made the ratio: it is in neither the loss nor its gradient, and no clip holds a token."""
    new = torch.log(torch.tensor([0.9, 0.1, 0.5])).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 0.0])
    algo = AlgoConfig(policy_loss=PolicyLoss.nll)
    loss = token_loss(new, torch.full((3,), -9.0), advantages, new, torch.ones(3), None, algo)
    assert torch.equal(loss.policy.detach(), -advantages * new.detach())
    loss.total.sum().backward()
    assert new.grad.tolist() == [-1.0, -1.0, 0.0] and not loss.clipped.any()


def test_a_loss_by_trajectory_needs_the_trajectory():
    one = torch.tensor([-1.0])
    with pytest.raises(ValueError, match="mean log-ratios"):
        token_loss(one, one, one, one, torch.ones(1), None, AlgoConfig(policy_loss=PolicyLoss.gspo))


def test_every_term_is_in_the_total():
    algo = AlgoConfig(kl_coef=0.1, kl_estimator=KlEstimator.k3, entropy_coef=0.01)
    new, old, reference = torch.tensor([[-1.0, -0.4], [-1.2, -0.5], [-0.7, -0.9]], dtype=torch.float64)
    advantage, entropy, correction = torch.tensor([[1.0, -1.0], [2.0, 3.0], [0.5, 1.5]], dtype=torch.float64)
    loss = token_loss(new, old, advantage, entropy, correction, reference, algo)
    for i in range(2):
        d = float(reference[i] - new[i])
        policy = by_hand(float(new[i]), float(old[i]), float(advantage[i]), 0.2, 0.28, 0.0) * float(correction[i])
        expected = policy + 0.1 * (np.exp(d) - 1 - d) - 0.01 * float(entropy[i])
        assert float(loss.total[i]) == pytest.approx(expected)
        assert float(loss.policy[i]) == pytest.approx(policy)


def test_kl_in_the_reward_leaves_the_loss_alone():
    one = torch.tensor([-1.0])
    algo = AlgoConfig(kl_coef=0.1, kl_in=KlPlace.reward)
    loss = token_loss(one, one, one, one, torch.ones(1), None, algo)
    assert float(loss.total) == float(loss.policy)
    assert float(loss.kl) == 0.0


def test_kl_in_the_loss_needs_a_reference():
    one = torch.tensor([-1.0])
    with pytest.raises(ValueError, match="reference"):
        token_loss(one, one, one, one, torch.ones(1), None, AlgoConfig(kl_coef=0.1))


def test_what_makes_a_row_with_advantage_zero_count():
    assert not zero_advantage_contributes(AlgoConfig())
    assert not zero_advantage_contributes(AlgoConfig(kl_coef=0.1, kl_in=KlPlace.reward))
    assert zero_advantage_contributes(AlgoConfig(kl_coef=0.1))
    assert zero_advantage_contributes(AlgoConfig(entropy_coef=0.1))
    assert zero_advantage_contributes(AlgoConfig(balance_coef=0.1))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.floats(-2, 2)), min_size=2, max_size=8),
    st.sampled_from(list(LossAggregation)),
    st.randoms(use_true_random=False),
)
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(rows, mode, rng):
    lengths = [length for length, _, _ in rows]
    weights = row_weights(lengths, [str(trajectory) for _, trajectory, _ in rows], mode, 7)
    logits = [
        torch.randn(length, dtype=torch.float64, generator=torch.manual_seed(i)) for i, length in enumerate(lengths)
    ]
    algo = AlgoConfig(entropy_coef=0.01)

    def run(parts):
        leaves, total = [one.clone().requires_grad_() for one in logits], 0.0
        for part in parts:
            new = torch.cat([leaves[i] for i in part])
            weight = torch.cat([torch.full((lengths[i],), weights[i], dtype=torch.float64) for i in part])
            advantage = torch.cat([torch.full((lengths[i],), rows[i][2], dtype=torch.float64) for i in part])
            loss = token_loss(new, new.detach() + 0.1, advantage, new.square(), torch.ones_like(new), None, algo)
            part_loss = (loss.total * weight).sum()
            part_loss.backward()
            total += float(part_loss.detach())
        return total, torch.cat([leaf.grad for leaf in leaves])

    order = list(range(len(rows)))
    whole, gradient = run([order])
    rng.shuffle(order)
    cut = rng.randrange(1, len(order))
    split, split_gradient = run([order[:cut], order[cut:]])
    assert split == pytest.approx(whole)
    torch.testing.assert_close(split_gradient, gradient)
