"""What paired steps say of two arms: averages, medians, and how sure the difference of the averages is.

Invariants:
- Equal numbers give equal statistics: the resampling is seeded.
- The relative difference is that of the two averages, not the average of the steps' differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
_BLOCK = 1_000_000  # resampled steps held at once


@dataclass(frozen=True, slots=True)
class Paired:
    """Of equally many values on both sides; percentages are of the baseline, None where it is zero."""

    steps: int
    baseline_average: float
    candidate_average: float
    baseline_median: float
    candidate_median: float
    interval_percent: tuple[float, float] | None  # of `delta_percent`; None for fewer than two steps

    @property
    def delta(self) -> float:
        return self.candidate_average - self.baseline_average

    @property
    def delta_percent(self) -> float | None:
        return percent(self.baseline_average, self.candidate_average)


def paired(baseline: Sequence[float], candidate: Sequence[float]) -> Paired | None:
    """Statistics of values that belong together by their position; None without any. Raises ValueError."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} values cannot be paired with {len(candidate)}")
    if not baseline:
        return None
    return Paired(
        len(baseline),
        fmean(baseline),
        fmean(candidate),
        median(baseline),
        median(candidate),
        bootstrap_percent(baseline, candidate),
    )


def percent(baseline: float, candidate: float) -> float | None:
    """How much more the candidate is, in per cent."""
    return 100 * (candidate - baseline) / baseline if baseline else None


def bootstrap_percent(
    baseline: Sequence[float], candidate: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[float, float] | None:
    """95 % percentile interval of the candidate's average over the baseline's, less one, in per cent.

    Pairs are drawn with replacement (Efron 1979), so what a step does to both sides cancels. Steps count as
    independent. None for fewer than two pairs, or where a draw has a baseline of zero.
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
