"""95 % intervals: of a rate, of the difference of two rates of the same instances, and of what paired runs differ by.

Invariants:
- Equal numbers give equal statistics: the resampling is seeded.
- The relative difference is that of the two averages, not the average of the steps' differences.
- An interval of the difference between arms is over pairs of runs, the unit that a repeat draws anew. What the steps of
  one pair say is kept apart: a machine that drifts between two runs moves all of their steps together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, stdev

# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z_95 = 1.959963984540054  # the 0.975 quantile of the standard normal
RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
_ROUNDING = 1e-12  # equal differences of rates differ by less, relative to the largest
_BLOCK = 1_000_000  # resampled steps held at once
# Below this many solved (or unsolved) instances, and below this share of 32, a rate is near 0 or 1. What instances vary
# by is hardly seen in such a sample: Wilson's interval then holds the rate in as few as 88 % of binomial samples. With
# ten, all samples of 20 to 500 instances stay above 92.6 % (exact sums over rates from 0.02 to 0.98).
_FEW_INSTANCES = 10.0
_EDGE_RATE = _FEW_INSTANCES / 32
# The interval of Jeffreys adds half an instance to either side and holds too seldom (88 %), that of Clopper and Pearson
# adds a whole one to the far side only and holds too often (98 %). A quarter and three quarters lie between them.
_NEAR_SHARE = 0.25
Interval = tuple[float, float]


def wilson_interval(successes: float, samples: float, quantile: float = Z_95) -> Interval | None:
    """Score interval of a binomial proportion (Wilson 1927); None without samples.

    Samples count as independent: for several of one instance see `clustered_interval`.
    """
    if samples <= 0:
        return None
    rate = successes / samples
    spread = quantile**2 / samples
    centre = (rate + spread / 2) / (1 + spread)
    half = quantile / (1 + spread) * sqrt(rate * (1 - rate) / samples + spread / (4 * samples))
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_interval(counts: Sequence[tuple[float, int]]) -> Interval | None:
    """Of the rate over all samples, for (solved, samples) of each instance; None without samples.

    Samples of one instance are alike, so that they tell less than as many of different ones. The interval is Wilson's
    for the number of independent samples with the variance that was seen between instances (Kish 1965, section 8.2,
    the design effect), with the quantile of Student's t for as many instances. Near 0 and 1 that variance is that of a
    few instances, mostly too small: there it is `_edge_interval`.
    """
    counts = [(solved, samples) for solved, samples in counts if samples > 0]
    total = sum(samples for _, samples in counts)
    if not counts:
        return None
    rate = sum(solved for solved, _ in counts) / total
    instances = len(counts)
    if min(rate, 1.0 - rate) < min(_EDGE_RATE, _FEW_INSTANCES / instances):
        return _edge_interval(counts, rate)
    between = sum((solved - rate * samples) ** 2 for solved, samples in counts)
    variance = between / total**2 * instances / max(1, instances - 1)
    if variance > 0.0:
        independent = rate * (1.0 - rate) / variance
    else:
        independent = float(instances)
    independent = min(float(total), max(1.0, independent))
    return wilson_interval(rate * independent, independent, t_975(max(1, instances - 1)))


def _edge_interval(counts: Sequence[tuple[float, int]], rate: float) -> Interval:
    """Returns the interval of `clustered_interval` for a rate near 0 or 1.

    It is the Bayesian bootstrap over instances (Rubin 1981) with one more instance: for the lower end a quarter of it
    solves everything and the rest solves nothing, for the upper end the other way round. For instances of one sample,
    this lies half-way between the intervals of Jeffreys and of Clopper and Pearson (Brown, Cai and DasGupta 2001,
    sections 4.1.1 and 4.2.1). Instances that differ less than those of one sample need less of this instance.
    """
    import numpy as np

    instances = len(counts)
    mean_samples = sum(samples for _, samples in counts) / instances
    alike = sorted(Counter(counts).items())
    solved = np.array([pair[0] for pair, _ in alike])
    samples = np.array([pair[1] for pair, _ in alike])
    # The sum of these weights is one less than the number of instances, as in the variance of a sample.
    weights = [number * (instances - 1) / instances for _, number in alike]
    added = _added_weight(counts, mean_samples)
    random = np.random.default_rng(SEED)
    drawn = random.standard_gamma(weights, size=(RESAMPLES, len(weights)))
    near = mean_samples * random.standard_gamma(added * _NEAR_SHARE, size=RESAMPLES)
    far = mean_samples * random.standard_gamma(added * (1 - _NEAR_SHARE), size=RESAMPLES)
    drawn_samples = drawn @ samples + near + far
    tail = (1 - LEVEL) / 2
    low = float(np.quantile((drawn @ solved + near) / drawn_samples, tail))
    high = float(np.quantile((drawn @ solved + far) / drawn_samples, 1 - tail))
    return min(rate, low) if rate > 0 else 0.0, max(rate, high) if rate < 1 else 1.0


def _added_weight(counts: Sequence[tuple[float, int]], mean_samples: float) -> float:
    """Returns the variance between instances as a share of that of instances of one sample, at most 1.

    Half an instance at 0 and half a one at 1 belong to it, because the few instances that differ are seldom all seen.
    """
    halves = [(0.0, mean_samples), (mean_samples, mean_samples)]
    weighted = [*((1.0, pair) for pair in counts), *((0.5, pair) for pair in halves)]
    rate = sum(weight * solved for weight, (solved, _) in weighted) / ((len(counts) + 1) * mean_samples)
    between = sum(weight * (solved - rate * samples) ** 2 for weight, (solved, samples) in weighted)
    return min(1.0, between / ((len(counts) + 1) * mean_samples**2 * rate * (1.0 - rate)))


def paired_interval(*sides: Sequence[tuple[float, int]]) -> Interval | None:
    """Returns the interval of the rate after less the rate before, for (solved, samples) of equal instances.

    For four sides it is that of what the last two differ by less what the first two do.

    What makes an instance easy or hard is in both rates, so that it cancels: a t-interval over the instances' parts in
    the difference (Cochran 1977, section 2.11, two ratios of one sample). It is never narrower than for half an
    instance that went either way: instances that all stay as they were give no width of 0. None without instances.
    Raises ValueError where an instance has no sample on a side, or the lengths differ.
    """
    instances = len(list(zip(*sides, strict=True)))
    if not instances:
        return None
    if any(samples < 1 for side in sides for _, samples in side):
        raise ValueError("an instance without a sample cannot be paired")
    rates = [sum(solved for solved, _ in side) / sum(samples for _, samples in side) for side in sides]
    means = [sum(samples for _, samples in side) / instances for side in sides]
    parts = [
        [(solved - rate * samples) / mean for solved, samples in side]
        for side, rate, mean in zip(sides, rates, means, strict=True)
    ]
    variance = sum(difference_of_values(part) ** 2 for part in zip(*parts, strict=True)) / max(1, instances - 1)
    half = t_975(max(1, instances - 1)) * max(sqrt(variance / instances), 1 / (instances + 2))
    delta = difference_of_values(rates)
    most = len(sides) / 2
    return max(-most, delta - half), min(most, delta + half)


def difference_of_values(values: Sequence[float]) -> float:
    """Returns the second less the first; of four, the difference of the last two less that of the first two."""
    if len(values) == 2:
        return values[1] - values[0]
    return difference_of_values(values[2:]) - difference_of_values(values[:2])


def t_975(freedom: int) -> float:
    """Returns the 0.975 quantile of Student's t for so many degrees of freedom, one at least."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    return 1.96 + 2.4 / freedom


@dataclass(frozen=True, slots=True)
class Paired:
    """The figures of pairs of runs with equally many steps on both sides.

    Averages are those of the runs' averages; percentages are of the baseline, None where it is zero.
    """

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
        return percent_change(self.baseline_average, self.candidate_average)


def pair_runs(baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> Paired | None:
    """Returns the figures of runs, each its steps, that pair by position; None without any. Raises ValueError."""
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


def known_difference(before: float | None, after: float | None) -> float | None:
    """Returns the difference, or None if one of both is not known."""
    if before is None or after is None:
        return None
    return after - before


def percent_change(baseline: float | None, candidate: float | None) -> float | None:
    """Returns the candidate's surplus in per cent; None where a side is not known, or the baseline is zero."""
    if baseline and candidate is not None:
        return 100 * (candidate - baseline) / baseline
    return None


def interval_percent(baseline: Sequence[float], candidate: Sequence[float]) -> Interval | None:
    """95 % t-interval of the mean difference of pairs, in per cent of the baseline's mean; None for fewer than two."""
    interval = mean_interval([after - before for before, after in zip(baseline, candidate, strict=True)])
    base = fmean(baseline)
    if interval and base > 0:
        return (100 * interval[0] / base, 100 * interval[1] / base)
    return None


def mean_interval(values: Sequence[float]) -> Interval | None:
    """95 % t-interval of a mean (Student 1908); None for fewer than two values, and for values that are all equal.

    Equal values have a spread of 0, and would get an interval without width: that no other run can differ. But the rate
    of a few instances has few values, so that runs agree by chance. What they say then is that the spread is smaller
    than such a rate shows, and not how large it is. An interval over instances is about something else: it takes the
    runs as they are.
    """
    if len(values) < 2 or max(values) - min(values) <= _ROUNDING * max(map(abs, values)):
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

    before = np.asarray(baseline, dtype=float)
    after = np.asarray(candidate, dtype=float)
    count = len(before)
    if count < 2:
        return None
    random = np.random.default_rng(seed)
    sums: list[tuple[np.ndarray, np.ndarray]] = []
    left = resamples
    rows = max(1, _BLOCK // count)
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
