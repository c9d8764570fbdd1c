import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.advantage import rewards_with_kl
from swe_rl.algo.loss import token_loss
from swe_rl.algo.sequences import kl_per_token
from swe_rl.config.choices import KlEstimator
from swe_rl.config.schema import AlgoConfig

PAIRS = st.lists(st.tuples(st.floats(-15, 0), st.floats(-15, 0)), min_size=1, max_size=20)


def tensors(pairs):
    return torch.tensor(pairs, dtype=torch.float64).T


@given(PAIRS)
def test_the_estimators_are_schulmans(pairs):
    policy, reference = np.array(pairs).T
    d = reference - policy
    expected = {KlEstimator.k1: -d, KlEstimator.k2: d**2 / 2, KlEstimator.k3: np.exp(d) - 1 - d}
    for estimator, values in expected.items():
        got = kl_per_token(*tensors(pairs), estimator).numpy()
        np.testing.assert_allclose(got, values, rtol=1e-9, atol=1e-9)


@given(PAIRS, st.sampled_from([KlEstimator.k2, KlEstimator.k3]))
def test_k2_and_k3_are_never_negative(pairs, estimator):
    assert bool((kl_per_token(*tensors(pairs), estimator) >= 0).all())


@pytest.mark.parametrize("estimator", [KlEstimator.k1, KlEstimator.k3])
def test_the_mean_over_samples_is_the_kl(estimator):
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.4, 0.4, 0.2]).log()
    samples = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=generator)
    estimate = kl_per_token(policy[samples], reference[samples], estimator).mean()
    exact = (policy.exp() * (policy - reference)).sum()
    assert float(estimate) == pytest.approx(float(exact), abs=2e-3)


def test_in_the_loss_k1_pulls_nowhere_and_k2_as_the_kl():
    """By enumeration: the mean gradient of an estimate over the policy's own samples."""
    logits = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    policy = logits.log_softmax(0)
    share = policy.exp().detach()
    (kl,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    (k1,) = torch.autograd.grad(
        (share * kl_per_token(policy, reference, KlEstimator.k1)).sum(), logits, retain_graph=True
    )
    (k2,) = torch.autograd.grad((share * kl_per_token(policy, reference, KlEstimator.k2)).sum(), logits)
    torch.testing.assert_close(k1, torch.zeros_like(logits), atol=1e-12, rtol=0)
    torch.testing.assert_close(k2, kl)


def expected_gradients(estimator, cap=None, seed=0):
    """By enumeration: of an estimate over the policy's samples, of KL(policy || reference), of the other KL."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, generator=source, dtype=torch.float64, requires_grad=True)
    reference = (logits.detach() + torch.randn(12, generator=source, dtype=torch.float64)).log_softmax(0)
    policy = logits.log_softmax(0)
    estimate = (policy.exp().detach() * kl_per_token(policy, reference, estimator, cap)).sum()
    there = (policy.exp() * (policy - reference)).sum()
    back = (reference.exp() * (reference - policy)).sum()
    return [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (estimate, there, back)]


@pytest.mark.parametrize("seed", range(5))
def test_in_the_loss_k3_descends_the_kl_the_other_way_round_unless_it_has_the_gradient_of_k2(seed):
    k3, there, back = expected_gradients(KlEstimator.k3, seed=seed)
    torch.testing.assert_close(k3, back)
    assert not torch.allclose(k3, there, rtol=0.05)
    for cap in (None, 10.0, 1e-3):  # its gradient is not held by the bound
        torch.testing.assert_close(expected_gradients(KlEstimator.k3_grad_k2, cap, seed)[0], there)


@given(PAIRS, st.sampled_from([0.5, 10.0]))
def test_the_bound_holds_the_value_of_k3_alone(pairs, cap):
    policy, reference = tensors(pairs)
    k3 = kl_per_token(policy, reference, KlEstimator.k3)
    for estimator in (KlEstimator.k3, KlEstimator.k3_grad_k2):
        torch.testing.assert_close(kl_per_token(policy, reference, estimator, cap), k3.clamp(max=cap))
        for unbounded in (None, 0.0):
            assert torch.equal(kl_per_token(policy, reference, estimator, unbounded), k3)
    for estimator in (KlEstimator.k1, KlEstimator.k2):
        assert torch.equal(kl_per_token(policy, reference, estimator, cap), kl_per_token(policy, reference, estimator))


def test_one_token_far_from_the_reference_costs_at_most_the_bound_and_is_counted():
    logprobs = torch.tensor([-30.0, -5.0, -0.1], dtype=torch.float64, requires_grad=True)
    reference, zero, one = torch.full((3,), -0.1, dtype=torch.float64), torch.zeros(3), torch.ones(3)

    def loss(**keys):
        algo = AlgoConfig(kl_coef=1.0, **keys)
        return token_loss(logprobs, logprobs.detach(), zero, one, one, reference, algo)

    bounded = loss()
    assert bounded.kl.tolist() == [10.0, 10.0, 0.0] and bounded.kl_capped.tolist() == [True, True, False]
    (gradient,) = torch.autograd.grad(bounded.total.sum(), logprobs)
    assert gradient.tolist() == [0.0, 0.0, 0.0]  # as a bound of the value leaves none
    pulled = loss(kl_estimator=KlEstimator.k3_grad_k2)
    assert pulled.kl_capped.tolist() == [True, True, False]
    (gradient,) = torch.autograd.grad(pulled.total.sum(), logprobs)
    assert gradient[1].item() == pytest.approx(-4.9)
    for free in (loss(kl_cap=0.0), loss(kl_cap=None)):
        assert free.kl[0].item() == pytest.approx(math.exp(20) - 21) and free.kl_capped is None
    assert loss(kl_estimator=KlEstimator.k2).kl_capped is None


def test_rows_of_older_weights_have_a_kl_without_importance_weight():
    """What the page says: the correction multiplies the policy's part alone."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference, ones = torch.tensor([-1.5, -1.5]), torch.ones(2)
    algo = AlgoConfig(kl_coef=1.0)
    plain, weighed = (
        token_loss(logprobs, logprobs.detach(), ones, ones, weight * ones, reference, algo) for weight in (1.0, 0.5)
    )
    assert torch.equal(plain.kl, weighed.kl) and torch.equal(0.5 * plain.policy, weighed.policy)


def test_one_impossible_token_does_not_make_it_infinite():
    values = kl_per_token(torch.tensor([-2000.0]), torch.tensor([0.0]), KlEstimator.k3)
    assert bool(torch.isfinite(values).all())


def test_rewards_are_lowered_by_the_summed_kl():
    assert rewards_with_kl([1.0, None, 0.0], [2.0, 5.0, -1.0], 0.1) == [pytest.approx(0.8), None, pytest.approx(0.1)]
    with pytest.raises(ValueError, match="1 rewards, but 2"):
        rewards_with_kl([1.0], [1.0, 2.0], 0.1)
