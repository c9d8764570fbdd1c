"""Sums over trajectories, here and with a trajectory's tokens on two ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.algo.sequences import Sequences

VALUES, NUMBERS = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1, 0, 1, 1])


def test_every_token_gets_its_trajectory_s_sum_and_mean():
    one = Sequences(NUMBERS, 3)
    assert one.sum(VALUES).tolist() == [13.0, 2.0, 13.0, 13.0]
    assert one.mean(VALUES).tolist() == pytest.approx([13 / 3, 2.0, 13 / 3, 13 / 3])


def test_no_gradient_flows():
    assert not Sequences(NUMBERS, 2).mean(VALUES.clone().requires_grad_()).requires_grad


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 3), st.booleans()), min_size=1, max_size=20))
def test_two_ranks_know_what_one_knows(tokens):
    """Both ranks ask for the same; each sum over the ranks is that of what both have."""
    values = torch.tensor([value for value, _, _ in tokens], dtype=torch.float64)
    numbers = torch.tensor([number for _, number, _ in tokens])
    here = torch.tensor([on_first for _, _, on_first in tokens])
    seen = []
    for rank in (here, ~here):
        Sequences(numbers[rank], 4, over_ranks=lambda totals: seen.append(totals) or totals).mean(values[rank])
    sums, counts = seen[0] + seen[2], seen[1] + seen[3]
    answers = iter([sums, counts])
    got = Sequences(numbers[here], 4, over_ranks=lambda _: next(answers)).mean(values[here])
    torch.testing.assert_close(got, Sequences(numbers, 4).mean(values)[here])
