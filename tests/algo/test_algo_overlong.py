"""The soft punishment of overlong trajectories against the paper's equation, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.advantage import CUT_SHORT, is_overlong, overlong_penalty
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.rollout.trajectory import Status


def equation_13(length, longest, cache):
    """DAPO's three cases, written out."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@given(length=st.integers(0, 3000), longest=st.integers(10, 2000), cache=st.integers(1, 9))
def test_is_the_papers(length, longest, cache):
    share = cache / longest
    assert overlong_penalty(length, longest, share, 1.0) == pytest.approx(equation_13(length, longest, cache), abs=1e-9)
    assert overlong_penalty(length, longest, share, 0.5) == pytest.approx(
        equation_13(length, longest, cache) / 2, abs=1e-9
    )


def test_off():
    assert overlong_penalty(10**6, 1000, 0.0, 1.0) == 0.0


def test_the_filter_knows_the_statuses_of_limits_and_no_others():
    assert {str(status) for status in Status} >= CUT_SHORT
    assert not CUT_SHORT & {str(status) for status in INFRA_STATUSES}
    assert is_overlong("context_overflow", False, True) and not is_overlong("context_overflow", False, False)
    assert not is_overlong("unresolved", False, True)


def test_the_filter_sees_a_cut_reply_behind_any_status():
    assert is_overlong("format_errors", True, True) and not is_overlong("format_errors", True, False)
