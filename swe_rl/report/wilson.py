"""The 95 % interval of a rate."""

from math import sqrt

Z_95 = 1.959963984540054  # the 0.975 quantile of the standard normal


def wilson_interval(successes: float, samples: int) -> tuple[float, float] | None:
    """Score interval of a binomial proportion (Wilson 1927); None without samples.

    Samples count as independent: several samples of one instance make the true interval wider.
    """
    if samples <= 0:
        return None
    rate = successes / samples
    spread = Z_95**2 / samples
    centre = (rate + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * sqrt(rate * (1 - rate) / samples + spread / (4 * samples))
    return max(0.0, centre - half), min(1.0, centre + half)
