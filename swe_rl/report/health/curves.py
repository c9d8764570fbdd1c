"""Takes from the lines of `steps.jsonl` the figures that findings judge: of the latest steps, and of both ends.

Invariants:
- A figure that is missing, null or not finite is left out.
- What moves no further than chance moves it is no trend: intervals and distances between the ends decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.logger.figures import finite_number
from swe_rl.report.statistics import Interval, t_975

Record = Mapping[str, Any]

# A mean over fewer steps follows single batches; one over more hides what has begun of late.
RECENT_STEPS = 10
# Shares of groups or replies in one or two steps are of a handful of instances.
FEWEST_STEPS = 3
# Beginning and end are three steps each, which must not overlap and need steps between them.
EDGE_STEPS = 3
FEWEST_STEPS_OF_A_TREND = 8


@dataclass(frozen=True, slots=True)
class Trend:
    """The figures of the first and of the last steps of a training."""

    first: tuple[float, ...]
    last: tuple[float, ...]

    @property
    def before(self) -> float:
        return fmean(self.first)

    @property
    def after(self) -> float:
        return fmean(self.last)

    @property
    def is_apart(self) -> bool:
        """Tells whether each step of one end lies beyond each of the other: single batches do not decide then."""
        return max(self.first) < min(self.last) or max(self.last) < min(self.first)

    @property
    def half_width(self) -> float:
        """Returns half the 95 % interval of `after` less `before`, over steps as independent draws."""
        spread = variance(self.first) / len(self.first) + variance(self.last) / len(self.last)
        return t_975(len(self.first) + len(self.last) - 2) * sqrt(spread)


def trained_steps(steps: Sequence[Record]) -> list[Record]:
    """Returns the last line of each step that sampled and trained, in order."""
    by_step = {row["step"]: row for row in steps if isinstance(row.get("step"), int)}
    return [by_step[step] for step in sorted(by_step) if "updates" in by_step[step] and "signal_rate" in by_step[step]]


def recent_figures(steps: Sequence[Record], key: str) -> list[float]:
    """Returns the figures of the latest steps; none where too few steps have one."""
    values = _figures(steps, key)
    if len(values) < FEWEST_STEPS:
        return []
    return values[-RECENT_STEPS:]


def trend_of(steps: Sequence[Record], key: str) -> Trend | None:
    """Returns both ends of a figure's curve; None for a run that is too short for a trend."""
    return _trend(_figures(steps, key))


def length_trend(steps: Sequence[Record]) -> Trend | None:
    """Returns both ends of the curve of response lengths, of the attempts that infrastructure did not break.

    Lines of older versions have the mean over all attempts only. Those count where no attempt of the step broke.
    """
    values = [finite_number(row.get(_length_key(row))) for row in steps]
    return _trend([value for value in values if value is not None])


def gap_interval(training: Trend, held_out_gain: Interval) -> Interval:
    """Returns the 95 % interval of what training gained more than the held-out split: the parts are independent."""
    low, high = held_out_gain
    centre = training.after - training.before - (low + high) / 2
    half = sqrt(training.half_width**2 + ((high - low) / 2) ** 2)
    return centre - half, centre + half


def _length_key(row: Record) -> str:
    if "valid_response_length" in row:
        return "valid_response_length"
    statuses = row.get("statuses")
    if isinstance(statuses, Mapping) and any(statuses.get(status) for status in INFRA_STATUSES):
        return ""
    return "avg_response_length"


def _trend(values: Sequence[float]) -> Trend | None:
    if len(values) < FEWEST_STEPS_OF_A_TREND:
        return None
    return Trend(tuple(values[:EDGE_STEPS]), tuple(values[-EDGE_STEPS:]))


def _figures(rows: Sequence[Record], key: str) -> list[float]:
    values = [finite_number(row.get(key)) for row in rows]
    return [value for value in values if value is not None]
