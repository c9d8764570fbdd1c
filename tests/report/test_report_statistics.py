import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report.statistics import bootstrap_percent, interval_percent, mean_interval, pair_runs, percent_change

RATES = st.lists(st.tuples(*[st.floats(1, 1e5)] * 2), min_size=2, max_size=12)


def test_the_published_average_row():
    """1493.8 and 1768.7 tokens/s are +274.9 and +18.4 %: of the averages, whatever the steps' own differences are."""
    tokens = pair_runs([[1493.8 - 900, 1493.8 + 900]], [[1768.7 + 10, 1768.7 - 10]])
    assert f"{tokens.delta:.1f} {tokens.delta_percent:.1f}" == "274.9 18.4"


@given(RATES)
def test_statistics_are_those_of_numpy(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    tokens = pair_runs([before], [after])
    assert (tokens.runs, tokens.steps) == (1, len(pairs))
    assert tokens.baseline_average == pytest.approx(np.mean(before))
    assert tokens.candidate_median == pytest.approx(np.median(after))
    assert tokens.delta == pytest.approx(np.mean(after) - np.mean(before), abs=1e-6)


@given(RATES)
def test_the_interval_is_ordered_repeatable_and_within_the_steps(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    low, high = bootstrap_percent(before, after, resamples=500)
    changes = [percent_change(*pair) for pair in pairs]
    assert min(changes) - 1e-6 <= low <= high <= max(changes) + 1e-6
    assert (low, high) == bootstrap_percent(before, after, resamples=500)


def test_pairing_cancels_what_a_step_does_to_both_sides():
    before = [100.0, 300.0, 900.0, 2700.0]
    assert bootstrap_percent(before, [1.2 * rate for rate in before]) == pytest.approx((20.0, 20.0))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random, covered = np.random.default_rng(7), 0
    for _ in range(200):
        before = random.normal(1000, 100, 40)
        low, high = bootstrap_percent(before, 1.1 * before + random.normal(0, 50, 40), resamples=400)
        covered += low <= 10 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_long_runs_are_resampled_in_blocks():
    before = list(np.random.default_rng(1).normal(1000, 50, 3000))
    low, high = bootstrap_percent(before, [rate + 100 for rate in before], resamples=1000)
    assert 9.9 < low < high < 10.1


def test_too_little_for_a_number():
    assert pair_runs([], []) is None
    alone = pair_runs([[5.0]], [[6.0]])
    assert alone.interval_percent is None is alone.within_run_percent
    assert pair_runs([[0.0, 0.0]], [[1.0, 1.0]]).delta_percent is None
    assert mean_interval([1.0]) is None is interval_percent([0.0, 0.0], [1.0, 2.0])
    assert bootstrap_percent([0.0, 5.0], [1.0, 1.0]) is None  # a draw of the first step alone has no ratio
    with pytest.raises(ValueError, match=r"runs of \[1\] steps cannot be paired with runs of \[2\]"):
        pair_runs([[1.0]], [[1.0, 2.0]])


def test_the_t_interval_by_hand():
    """2, 4 and 6: mean 4, standard deviation 2, two degrees of freedom."""
    half = 4.303 * 2 / 3**0.5
    assert mean_interval([2.0, 4.0, 6.0]) == pytest.approx((4 - half, 4 + half))
    low, high = mean_interval([float(value) for value in range(64)])  # beyond the table: 1.998 of 63
    assert (high - low) / 2 == pytest.approx(1.998 * np.std(range(64), ddof=1) / 8, rel=1e-3)


def test_one_pair_of_runs_has_no_interval_of_the_difference():
    """Its steps say how they vary within that run."""
    alone = pair_runs([[100.0, 101.0, 102.0]], [[80.0, 81.0, 79.0]])
    assert alone.interval_percent is None and alone.within_run_percent[1] < -10
    several = pair_runs([[100.0, 101.0], [90.0, 91.0]], [[80.0, 81.0], [99.0, 99.0]])
    assert several.within_run_percent is None and several.interval_percent[0] < 0 < several.interval_percent[1]


def test_runs_weigh_alike_however_many_steps_they_have():
    tokens = pair_runs([[100.0] * 9, [200.0]], [[100.0] * 9, [300.0]])
    assert (tokens.runs, tokens.steps, tokens.baseline_average, tokens.candidate_average) == (2, 10, 150.0, 200.0)
    assert tokens.delta_percent == pytest.approx(100 / 3)
