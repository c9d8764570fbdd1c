"""pass@k against counting all subsets; failures of infrastructure are no attempts."""

import math
import random
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report import statistics
from swe_rl.report.resolved import of_counts
from swe_rl.rollout.counts import valid_counts
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


def coverage(instances, attempts, k, alike, truth, draws):
    """How often the interval holds the true pass@k, and how often it lies above: of instances whose chances are beta
    distributed and as much `alike` in their attempts (the correlation of two attempts at one instance)."""
    strength, low, high = 1 / alike - 1, 0.0, 1.0
    for _ in range(60):  # the mean chance that has this pass@k
        mean = (low + high) / 2
        failing = math.prod(((1 - mean) * strength + i) / (strength + i) for i in range(k))
        low, high = (mean, high) if 1 - failing < truth else (low, mean)
    rng = np.random.default_rng(round(1000 * truth) + instances + attempts)
    chances = rng.beta(mean * strength, (1 - mean) * strength, (draws, instances))
    found = [pass_rate([(solved, attempts) for solved in row], k) for row in rng.binomial(attempts, chances).tolist()]
    held = sum(it.low <= truth <= it.high for it in found)
    return held / draws, sum(truth < it.low for it in found) / draws


@pytest.mark.parametrize(
    ("instances", "attempts", "k", "alike", "truth"),
    [(32, 16, 8, 0.5, 0.98), (60, 8, 4, 0.3, 0.979), (100, 8, 1, 0.5, 0.02), (32, 8, 4, 0.3, 0.5)],
)
def test_its_interval_covers_what_it_says_near_the_edges(instances, attempts, k, alike, truth, monkeypatch):
    """Of nearly all instances that are always solved, the few others say too little of how much instances vary."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)  # the interval's ends move less than the simulation's error
    held, above = coverage(instances, attempts, k, alike, truth, draws=400)
    assert held >= 0.93 and above <= 0.05


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("instances", [32, 60, 200])
@pytest.mark.parametrize(("attempts", "k"), [(2, 1), (8, 1), (8, 4), (8, 8), (16, 8), (16, 2)])
def test_its_interval_covers_what_it_says_everywhere(instances, attempts, k):
    """95 %, less 2 and the simulation's own error (1 %). Beyond 0.02 and 0.98 it may only be wider."""
    shares = {
        (alike, truth): coverage(instances, attempts, k, alike, truth, draws=500)[0]
        for alike in (0.1, 0.3, 0.5)
        for truth in (0.005, 0.02, 0.05, 0.1, 0.3, 0.7, 0.9, 0.95, 0.98, 0.995)
    }
    assert not {case: share for case, share in shares.items() if share < 0.92}
    inner = [share for (_, truth), share in shares.items() if 0.05 <= truth <= 0.95]
    assert 0.94 <= fmean(inner) <= 0.975


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
            **{"k": 2, "rate": 1.0, "low": 0.0, "high": 1.0, "num_instances": 1},
            **{"left_out": 1, "least": 0.5, "most": 1.0},
        },
        abs=1e-4,
    )
    assert table["repositories"]["x/two"]["statuses"] == {"empty_patch": 1, "infra_error": 1}
    assert table["repositories"]["x/two"]["pass_at"].keys() == {"1"}
