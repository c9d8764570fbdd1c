"""What paired runs say of two arms: averages, medians, and how sure the difference of the averages is.

Invariants:
- Equal numbers give equal statistics: the resampling is seeded.
- The relative difference is that of the two averages, not the average of the steps' differences.
- An interval of the difference between arms is over pairs of runs, the unit that a repeat draws anew. What the steps of
  one pair say is kept apart: a machine that drifts between two runs moves all of their steps together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, stdev

from swe_rl.report.wilson import t_975

RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
_BLOCK = 1_000_000  # resampled steps held at once

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Paired:
    """Of pairs of runs with equally many steps on both sides. Averages are those of the runs' averages; percentages are
    of the baseline, None where it is zero."""

    runs: int
    steps: int  # of all runs
    baseline_average: float
    candidate_average: float
    baseline_median: float  # of all steps
    candidate_median: float
    interval_percent: Interval | None  # of `delta_percent`, over pairs of runs; None for fewer than two
    within_run_percent: Interval | None  # over the steps of the only pair; None for several pairs or one step

    @property
    def delta(self) -> float:
        return self.candidate_average - self.baseline_average

    @property
    def delta_percent(self) -> float | None:
        return percent(self.baseline_average, self.candidate_average)


def paired(baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> Paired | None:
    """Of runs, each its steps, that belong together by their position; None without any. Raises ValueError."""
    lengths = [[len(run) for run in side] for side in (baseline, candidate)]
    if lengths[0] != lengths[1]:
        raise ValueError(f"runs of {lengths[0]} steps cannot be paired with runs of {lengths[1]}")
    if not lengths[0]:
        return None
    before, after = ([fmean(run) for run in side] for side in (baseline, candidate))
    steps = [[rate for run in side for rate in run] for side in (baseline, candidate)]
    alone = len(before) == 1
    return Paired(
        len(before),
        len(steps[0]),
        fmean(before),
        fmean(after),
        median(steps[0]),
        median(steps[1]),
        None if alone else interval_percent(before, after),
        bootstrap_percent(steps[0], steps[1]) if alone else None,
    )


def percent(baseline: float, candidate: float) -> float | None:
    """How much more the candidate is, in per cent."""
    return 100 * (candidate - baseline) / baseline if baseline else None


def interval_percent(baseline: Sequence[float], candidate: Sequence[float]) -> Interval | None:
    """95 % t-interval of the mean difference of pairs, in per cent of the baseline's mean; None for fewer than two."""
    found = mean_interval([after - before for before, after in zip(baseline, candidate, strict=True)])
    base = fmean(baseline)
    return (100 * found[0] / base, 100 * found[1] / base) if found and base > 0 else None


def mean_interval(values: Sequence[float]) -> Interval | None:
    """95 % t-interval of a mean (Student 1908); None for fewer than two values."""
    if len(values) < 2:
        return None
    half = t_975(len(values) - 1) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def bootstrap_percent(
    baseline: Sequence[float], candidate: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """95 % percentile interval of the candidate's average over the baseline's, less one, in per cent.

    Pairs are drawn with replacement (Efron 1979), so what a step does to both sides cancels. Steps count as
    independent, which those of one run are not. None for fewer than two pairs, or where a draw has a baseline of zero.
    """
    import numpy as np

    before, after = np.asarray(baseline, dtype=float), np.asarray(candidate, dtype=float)
    count = len(before)
    if count < 2:
        return None
    random = np.random.default_rng(seed)
    sums: list[tuple[np.ndarray, np.ndarray]] = []
    left, rows = resamples, max(1, _BLOCK // count)
    while left > 0:
        drawn = random.integers(0, count, size=(min(rows, left), count))
        sums.append((before[drawn].sum(axis=1), after[drawn].sum(axis=1)))
        left -= rows
    below, above = (np.concatenate(side) for side in zip(*sums, strict=True))
    if np.any(below <= 0):
        return None
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(100 * (above / below - 1), [tail, 100 - tail])
    return float(low), float(high)
