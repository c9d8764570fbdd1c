"""Scales and ticks of a plot.

Invariants:
- Ticks lie inside the domain, at multiples of 1, 2, 2.5 or 5 times a power of ten.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SIZES = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low..high` of the data to `start..end` in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most about `most`, ascending; `whole`: at integers only, as steps are."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(one * power for one in _SIZES if one * power >= raw * 0.999)
    if whole:
        size = max(1.0, math.ceil(size))
    first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
    return [index * size for index in range(first, last + 1)]


def tick_text(value: float, marks: Sequence[float]) -> str:
    """With as many decimals as the distance of the marks needs."""
    size = min((after - before for before, after in zip(marks, marks[1:], strict=False)), default=1.0)
    digits = max(0, -math.floor(math.log10(size) + 1e-9)) if size > 0 else 0
    digits += round(size * 10**digits, 6) % 1 > 0  # steps of 2.5
    return f"{value + 0.0:.{digits}f}"
