"""The 95 % interval of a rate, and of the difference of two rates of the same instances."""

from collections.abc import Sequence
from math import sqrt

# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_95 = 1.959963984540054  # the 0.975 quantile of the standard normal


def wilson_interval(successes: float, samples: float, quantile: float = Z_95) -> tuple[float, float] | None:
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


def clustered_interval(counts: Sequence[tuple[float, int]]) -> tuple[float, float] | None:
    """Of the rate over all samples, for (solved, samples) of each instance; None without samples.

    Samples of one instance are alike, so that they tell less than as many of different ones. The interval is Wilson's
    for the number of independent samples with the variance that was seen between instances (Kish 1965, section 8.2,
    the design effect), with the quantile of Student's t for as many instances.
    """
    counts = [(solved, samples) for solved, samples in counts if samples > 0]
    total = sum(samples for _, samples in counts)
    if not counts:
        return None
    rate, instances = sum(solved for solved, _ in counts) / total, len(counts)
    between = sum((solved - rate * samples) ** 2 for solved, samples in counts)
    variance = between / total**2 * instances / max(1, instances - 1)
    independent = rate * (1.0 - rate) / variance if variance > 0.0 else float(instances)
    independent = min(float(total), max(1.0, independent))
    return wilson_interval(rate * independent, independent, t_975(max(1, instances - 1)))


def paired_interval(
    before: Sequence[tuple[float, int]], after: Sequence[tuple[float, int]]
) -> tuple[float, float] | None:
    """Of the rate after less the rate before, for (solved, samples) of the same instances in the same order.

    What makes an instance easy or hard is in both rates, so that it cancels: a t-interval over the instances' parts in
    the difference (Cochran 1977, section 2.11, two ratios of one sample). It is never narrower than for half an
    instance that went either way: instances that all stay as they were give no width of 0. None without instances.
    Raises ValueError where an instance has no sample on a side, or the lengths differ.
    """
    pairs = list(zip(before, after, strict=True))
    if not pairs:
        return None
    if any(samples < 1 for pair in pairs for _, samples in pair):
        raise ValueError("an instance without a sample cannot be paired")
    instances = len(pairs)
    rates = [sum(solved for solved, _ in side) / sum(samples for _, samples in side) for side in (before, after)]
    means = [sum(samples for _, samples in side) / instances for side in (before, after)]
    parts = [
        [(solved - rate * samples) / mean for solved, samples in side]
        for side, rate, mean in zip((before, after), rates, means, strict=True)
    ]
    variance = sum((late - early) ** 2 for early, late in zip(*parts, strict=True)) / max(1, instances - 1)
    half = t_975(max(1, instances - 1)) * max(sqrt(variance / instances), 1 / (instances + 2))
    delta = rates[1] - rates[0]
    return max(-1.0, delta - half), min(1.0, delta + half)


def t_975(freedom: int) -> float:
    """The 0.975 quantile of Student's t for so many degrees of freedom, one at least."""
    return _T_975[freedom - 1] if freedom <= len(_T_975) else 1.96 + 2.4 / freedom
