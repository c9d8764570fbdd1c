import numpy as np
import pytest
import torch

from swe_rl.algo.correction import correction_weights
from swe_rl.config.schema import Correction

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.0])
ROLLOUT = torch.tensor([-1.5, -1.0, -2.5, -3.1, -1.2])
SEQUENCE = torch.tensor([0, 0, 1, 2, 2])


def test_none_is_one_even_where_the_engine_is_unknown():
    weights = correction_weights(OLD, torch.full((5,), torch.nan), SEQUENCE, Correction.none, 2.0)
    assert weights.tolist() == [1.0] * 5


def test_token_weights_are_capped_ratios():
    expected = np.minimum(np.exp(OLD.numpy() - ROLLOUT.numpy()), 2.0)
    got = correction_weights(OLD, ROLLOUT, SEQUENCE, Correction.token_tis, 2.0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_sequence_weights_are_the_capped_products():
    expected = np.minimum(np.exp([-0.5, -0.5, 2.0, 0.3, 0.3]), 2.0)
    got = correction_weights(OLD, ROLLOUT, SEQUENCE, Correction.sequence_tis, 2.0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_the_rows_of_a_split_trajectory_need_not_be_neighbours():
    order = torch.tensor([3, 0, 2, 4, 1])
    plain = correction_weights(OLD, ROLLOUT, SEQUENCE, Correction.sequence_tis, 5.0)
    mixed = correction_weights(OLD[order], ROLLOUT[order], SEQUENCE[order], Correction.sequence_tis, 5.0)
    torch.testing.assert_close(mixed, plain[order])


@pytest.mark.parametrize("correction", list(Correction))
def test_no_gradient_flows_through_the_weights(correction):
    old = OLD.clone().requires_grad_()
    assert not correction_weights(old, ROLLOUT, SEQUENCE, correction, 2.0).requires_grad


@pytest.mark.parametrize("correction", list(Correction))
def test_no_tokens_are_fine(correction):
    empty = torch.zeros(0)
    assert correction_weights(empty, empty, empty.long(), correction, 2.0).shape == (0,)


@pytest.mark.parametrize("correction", list(Correction))
def test_tokens_outside_of_the_bounds_weigh_nothing(correction):
    ratio = (OLD - ROLLOUT).exp()
    free = correction_weights(OLD, ROLLOUT, SEQUENCE, correction, 2.0)
    got = correction_weights(OLD, ROLLOUT, SEQUENCE, correction, 2.0, (0.8, 1.25))
    inside = (ratio >= 0.8) & (ratio <= 1.25)
    assert 0 < int(inside.sum()) < len(ratio)
    torch.testing.assert_close(got, torch.where(inside, free, torch.zeros_like(free)))
