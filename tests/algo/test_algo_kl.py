import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.advantage import rewards_with_kl
from swe_rl.algo.sequences import kl_per_token
from swe_rl.config.choices import KlEstimator

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


def test_one_impossible_token_does_not_make_it_infinite():
    values = kl_per_token(torch.tensor([-2000.0]), torch.tensor([0.0]), KlEstimator.k3)
    assert bool(torch.isfinite(values).all())


def test_rewards_are_lowered_by_the_summed_kl():
    assert rewards_with_kl([1.0, None, 0.0], [2.0, 5.0, -1.0], 0.1) == [pytest.approx(0.8), None, pytest.approx(0.1)]
    with pytest.raises(ValueError, match="1 rewards, but 2"):
        rewards_with_kl([1.0], [1.0, 2.0], 0.1)
