import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report import statistics
from swe_rl.report.figures import eval_points, instance_rows, make_tiles
from swe_rl.report.statistics import clustered_interval, mean_interval, paired_interval, wilson_interval


@pytest.mark.parametrize(("instances", "samples", "shape"), [(32, 4, 0.5), (100, 8, 0.3), (20, 4, 2.0), (64, 1, 0.5)])
def test_an_interval_over_instances_covers_what_it_says(instances, samples, shape):
    """Samples of one instance are alike: as independent ones they make an interval that is too narrow."""
    rng, draws, covered, naive = random.Random(0), 600, 0, 0
    for _ in range(draws):
        chances = [rng.betavariate(shape, 2 * shape) for _ in range(instances)]
        counts = [(sum(rng.random() < chance for _ in range(samples)), samples) for chance in chances]
        low, high = clustered_interval(counts)
        covered += low <= 1 / 3 <= high
        low, high = wilson_interval(sum(solved for solved, _ in counts), instances * samples)
        naive += low <= 1 / 3 <= high
    assert 0.93 <= covered / draws <= 0.985
    assert samples == 1 or naive / draws < 0.9


def test_an_interval_over_instances_at_its_edges():
    assert clustered_interval([]) is None and clustered_interval([(0, 0)]) is None
    low, high = clustered_interval([(4, 4)] * 10)
    assert high == 1.0 and 0.6 < low < 0.75  # ten instances, not forty samples
    assert clustered_interval([(1, 1)] * 10) == pytest.approx((low, high), abs=1e-9)
    assert clustered_interval([(2, 4)]) == pytest.approx((0.0, 1.0), abs=0.01)  # one says nothing of others
    mirrored = clustered_interval([(0, 4)] * 10)
    assert mirrored[0] == 0.0 and mirrored[1] == pytest.approx(1 - low, abs=0.02)
    # The quantiles 0.025 of Beta(1.25, 99.75) and 0.975 of Beta(1.75, 99.25), by another program.
    assert clustered_interval([(0, 1)] * 99 + [(1, 1)]) == pytest.approx((0.00059, 0.05020), abs=0.001)
    assert clustered_interval([(0, 1)] * 29 + [(1, 1)] * 3) == pytest.approx((0.0234, 0.2400), abs=0.003)


@pytest.mark.parametrize("instances", [20, 32, 60, 128])
def test_an_interval_over_instances_of_one_sample_holds_any_rate(instances):
    """The share of samples is summed exactly, so no simulation's error is in it. Only near 0 and 1, where few samples
    are possible, may an interval be wider than it says."""
    intervals = [
        clustered_interval([(1, 1)] * solved + [(0, 1)] * (instances - solved)) for solved in range(instances + 1)
    ]
    shares = []
    for rate in (number / 200 for number in range(4, 197)):
        chances = [
            comb(instances, solved) * rate**solved * (1 - rate) ** (instances - solved)
            for solved in range(instances + 1)
        ]
        shares.append(
            sum(chance for chance, (low, high) in zip(chances, intervals, strict=True) if low <= rate <= high)
        )
    assert min(shares) >= 0.925
    assert 0.95 <= sum(shares) / len(shares) <= 0.97


@pytest.mark.parametrize(
    ("instances", "samples", "shape", "move"),
    [(32, 4, 0.5, 0.2), (100, 1, 0.3, 0.05), (100, 8, 0.3, 0.1), (20, 4, 2.0, 0.3), (64, 1, 0.5, 0.0)],
)
def test_a_paired_interval_covers_what_it_says(instances, samples, shape, move, monkeypatch):
    """Some attempts are missing on one side; each instance moves by its own amount."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)  # the paired interval draws none
    rng, draws, covered, wide = random.Random(0), 600, 0, 0
    for _ in range(draws):
        before, after = [], []
        for _ in range(instances):
            chance = rng.betavariate(shape, 2 * shape)
            moved = chance + (1 - chance) * 2 * move * rng.random()
            count = samples - (samples > 1 and rng.random() < 0.05)
            before.append((sum(rng.random() < chance for _ in range(count)), count))
            after.append((sum(rng.random() < moved for _ in range(samples)), samples))
        low, high = paired_interval(before, after)
        covered += low <= 2 / 3 * move <= high
        (a, b), (c, d) = clustered_interval(before), clustered_interval(after)
        wide += (b - a + d - c) / (high - low)
    assert 0.93 <= covered / draws <= 0.985
    assert samples == 1 or wide / draws > 1.05  # what the two intervals say apart is wider: instances cancel


def test_the_interval_of_two_gains_is_that_of_each_instance_s_difference():
    rng = random.Random(0)
    sides = [[(rng.randint(0, 8), 8) for _ in range(30)] for _ in range(4)]
    by_instance = [((d - c) - (b - a)) / 8 for (a, _), (b, _), (c, _), (d, _) in zip(*sides, strict=True)]
    assert paired_interval(*sides) == pytest.approx(mean_interval(by_instance))
    low, high = paired_interval(*[[(1, 4)] * 10] * 4)
    assert (low, high) == paired_interval(*[[(1, 4)] * 10] * 2) and high > 0  # nothing moved: no width of 0
    assert paired_interval([(4, 4)], [(0, 4)], [(0, 4)], [(4, 4)])[1] == 2.0


def test_a_paired_interval_at_its_edges():
    assert paired_interval([], []) is None
    low, high = paired_interval([(4, 4)] * 10, [(4, 4)] * 10)
    assert -0.25 < low < 0 < high < 0.25  # nothing moved, and ten instances do not prove that nothing does
    assert paired_interval([(0, 4)], [(4, 4)]) == (-1.0, 1.0)  # one says nothing of others
    low, high = paired_interval([(0, 1)] * 50 + [(1, 1)] * 50, [(1, 1)] * 50 + [(1, 1)] * 50)
    assert low == pytest.approx(0.5 - 1.984 * (0.25 / 99) ** 0.5, abs=2e-3) and high == pytest.approx(1 - low)
    for wrong in ([(1, 1), (0, 1)], [(0, 0)]):
        with pytest.raises(ValueError):
            paired_interval([(1, 1)], wrong)


def test_wilson_interval_of_the_textbook():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(0, 0) is None


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_is_ordered_symmetric_and_holds_the_rate(pair):
    successes, samples = pair
    low, high = wilson_interval(successes, samples)
    assert 0 <= low <= successes / samples + 1e-12 and successes / samples - 1e-12 <= high <= 1
    mirrored = wilson_interval(samples - successes, samples)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def event(step, rate, samples=96, split="heldout", table=None):
    return {"step": step, "split": split, "resolved_rate": rate, "num_samples": samples, "by_instance": table or {}}


def test_before_after_and_gain():
    points = eval_points([event(0, 0.25), event(9, 0.5), event(9, 0.9, split="other")])
    tiles = {tile["label"]: tile for tile in make_tiles([], points, {}, None)}
    assert tiles["Held-out resolved rate"]["value"] == "25.0 % → 50.0 %"
    assert "step 9: 40.2–59.8 %, n = 96" in tiles["Held-out resolved rate"]["detail"]
    assert tiles["Gain in points"]["value"] == "+25.0"


def test_one_evaluation_is_no_gain():
    tiles = make_tiles([], eval_points([event(0, 0.25)]), {}, None)
    assert [tile["label"] for tile in tiles] == ["Held-out resolved, step 0", "Steps"]


def test_what_is_unknown_has_no_tile():
    assert [tile["label"] for tile in make_tiles([], eval_points([event(0, None, 0)]), {}, None)] == ["Steps"]


def test_throughput_time_and_memory():
    steps = [{"step": 1, "tokens_per_s": 100.0, "step_s": 2.0}, {"step": 2, "tokens_per_s": 300.0, "step_s": 4.0}]
    tiles = {tile["label"]: tile["value"] for tile in make_tiles(steps, [], {"peak_memory_gb": 1.5, "peak_x": 1}, 61.0)}
    assert tiles == {"Steps": "2", "Response tokens/s": "200", "Wall time": "1:01", "Peak memory": "1.50 GB"}


def test_instances_before_and_after():
    rows = instance_rows(
        [event(0, 0.5, table={"a": [1, 4], "b": [0, 4], "bad": "x"}), event(5, 0.5, table={"a": [4, 4], "c": [1, 2]})]
    )
    assert rows == [
        {"id": "a", "before": (1, 4), "after": (4, 4)},
        {"id": "b", "before": (0, 4), "after": None},
        {"id": "c", "before": None, "after": (1, 2)},
    ]
