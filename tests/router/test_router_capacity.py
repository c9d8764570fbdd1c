import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.core import EngineLoad
from swe_rl.router.engine_book import Capacity


def load(used=0, capacity=1000, waiting=0, preemptions=0, running=1):
    return EngineLoad("e", running, waiting, used, capacity, preemptions)


def test_an_unknown_capacity_is_the_default_and_a_known_one_stays():
    capacity = Capacity(500)
    capacity.observe(load(capacity=0), 0)
    assert capacity.tokens == 500
    capacity.observe(load(capacity=1000), 0)
    capacity.observe(load(capacity=0), 0)
    assert capacity.tokens == 1000
    capacity.observe(load(capacity=4000), 0)
    assert capacity.tokens == 4000


def test_what_the_ledger_does_not_know_is_taken_away():
    capacity = Capacity(1)
    for _ in range(40):
        capacity.observe(load(used=600), 500)
    assert capacity.tokens == pytest.approx(900, abs=1)
    for _ in range(200):
        capacity.observe(load(used=450), 500)
    assert capacity.tokens == pytest.approx(1050, abs=1)


def test_requests_that_wait_mean_shortage_only_when_the_cache_is_full():
    capacity = Capacity(1)
    capacity.observe(load(used=400, waiting=9), 800)
    assert capacity.tokens == 1000
    capacity.observe(load(used=950, waiting=1), 950)
    assert capacity.tokens == 950
    capacity.observe(load(used=500, preemptions=3), 500)
    assert capacity.tokens == 900
    capacity.observe(load(used=500, preemptions=3), 500)
    assert 900 < capacity.tokens < 1000


_loads = st.builds(load, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 5))


@given(st.lists(st.tuples(_loads, st.integers(0, 10**6)), max_size=40))
def test_the_correction_is_bounded_and_the_capacity_positive(observed):
    capacity = Capacity(1000)
    for one, ledger_tokens in observed:
        capacity.observe(one, ledger_tokens)
        reported = capacity.reported_tokens
        assert capacity.tokens >= 1 and 0.75 * reported <= capacity.tokens + 1e-6 <= 1.1 * reported + 1
