"""pass@k against counting all subsets; failures of infrastructure are no attempts."""

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report.resolved import of_counts
from swe_rl.rollout.batch import valid_counts
from swe_rl.rollout.pass_at_k import pass_at_k, pass_rate, reported_ks, score_table
from swe_rl.rollout.trajectory import Status

ATTEMPTS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n))
)


@given(ATTEMPTS)
def test_it_is_the_share_of_subsets_with_a_solution(case):
    outcomes, k = case
    subsets = list(combinations(outcomes, k))
    assert pass_at_k(sum(outcomes), len(outcomes), k) == pytest.approx(sum(any(it) for it in subsets) / len(subsets))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_more_tries_never_hurt_and_the_interval_holds_the_rate(solved):
    rates = [pass_rate([(one, 4) for one in solved], k) for k in (1, 2, 4)]
    assert [it.rate for it in rates] == sorted(it.rate for it in rates)
    assert all(0 <= it.low <= it.rate + 1e-12 and it.rate <= it.high + 1e-12 <= 1 + 1e-12 for it in rates)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_its_interval_covers_what_it_says(k):
    rng, draws, covered = random.Random(k), 400, 0
    truth = fmean(1 - (1 - rng.betavariate(0.5, 1.0)) ** k for _ in range(200_000))
    for _ in range(draws):
        chances = [rng.betavariate(0.5, 1.0) for _ in range(40)]
        found = pass_rate([(sum(rng.random() < chance for _ in range(4)), 4) for chance in chances], k)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / draws <= 0.985


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_pass_at_1_is_the_resolved_rate_where_all_have_equally_many(solved):
    found = pass_rate([(one, 4) for one in solved], 1)
    whole = of_counts({str(place): (one, 4) for place, one in enumerate(solved)})
    assert (found.rate, found.low, found.high) == pytest.approx((whole.rate, whole.low, whole.high))


def test_too_few_attempts():
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(1, 2, 3)
    assert pass_rate([(1, 2)], 3) is None
    assert pass_rate([(1, 2), (0, 3)], 3).num_instances == 1


def test_reported_ks():
    assert [reported_ks(n) for n in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]


def test_the_table_counts_by_repository_and_leaves_failures_out(trajectory):
    done = [
        trajectory("e.0.a", 0, Status.resolved),
        trajectory("e.0.a", 1, Status.unresolved),
        trajectory("e.0.b", 0, Status.infra_error),
        trajectory("e.0.b", 1, Status.empty_patch),
    ]
    assert valid_counts(done) == {"a": (1, 2), "b": (0, 1)}
    table = score_table(done, {"a": "x/one", "b": "x/two"}, 2)
    assert table["all"]["pass_at"]["1"]["rate"] == 0.25
    assert table["all"]["resolved"]["rate"] == pytest.approx(1 / 3)
    assert table["all"]["pass_at"]["2"] == pytest.approx(
        {
            **{"k": 2, "rate": 1.0, "low": 0.0062, "high": 1.0, "num_instances": 1},
            **{"left_out": 1, "least": 0.5, "most": 1.0},
        },
        abs=1e-4,
    )
    assert table["repositories"]["x/two"]["statuses"] == {"empty_patch": 1, "infra_error": 1}
    assert table["repositories"]["x/two"]["pass_at"].keys() == {"1"}
