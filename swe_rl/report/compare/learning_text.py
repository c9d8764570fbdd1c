"""Prints what the arms of a comparison learned: curves as tables, then how the arms differ.

Invariants:
- The held-out rate comes first: it is what training is for. Rates are in per cent, and differences in points.
- Each interval is named by what it is over.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

from swe_rl.report.compare.compare import Comparison, parts_of_arms
from swe_rl.report.compare.held_out import gain_line, pair_line
from swe_rl.report.compare.learning import LearningCurve, held_out_curve, reward_curve
from swe_rl.report.compare.text import (
    NOTHING,
    describe_runs,
    format_table,
    name_arms,
    name_candidate,
    note_lines,
    runs_table,
    wrap_lines,
)

# A longer curve is printed with so many of its steps. The CSV has them all.
_MOST_ROWS = 12


def learning_text(made: Comparison, room: int = sys.maxsize) -> str:
    """Returns the text of arms that trained, in `room` columns, without a newline at the end."""
    lines = [_title(made), "", *describe_runs(made), ""]
    lines += _curve_lines("Held-out resolved rate, %", [held_out_curve(arm) for arm in made.arms], _percent, room)
    for part in parts_of_arms(made.arms):
        curves = [held_out_curve(arm, part) for arm in made.arms]
        lines += _curve_lines(f"Held-out resolved rate of {part}, %", curves, _percent, room)
    lines += _curve_lines("Reward", [reward_curve(arm) for arm in made.arms], _reward, room)
    lines += _difference_lines(made)
    lines += note_lines(made)
    lines += runs_table(made, room)
    lines += ["", "job.figures=throughput compares tokens per second."]
    return wrap_lines(lines, room)


def _title(made: Comparison) -> str:
    return f"# Comparison of learning ({name_arms(made)})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _reward(value: float) -> str:
    return f"{value:.3f}"


def _curve_lines(
    title: str, curves: Sequence[LearningCurve], write: Callable[[float], str], room: int
) -> Iterator[str]:
    """Yields the table of a figure with a column for each arm; nothing where no arm has it."""
    steps = sorted({step for curve in curves for step in curve.points})
    if not steps:
        return
    shown = _thin_out(steps)
    rows = [[str(step), *(_point_text(curve, step, write) for curve in curves)] for step in shown]
    left_out = ""
    if len(shown) < len(steps):
        left_out = f", {len(shown)} of {len(steps)} steps"
    yield f"{title} by step ({_over_what(curves)}{left_out})"
    yield ""
    yield from format_table(["Step", *(curve.arm.short for curve in curves)], rows, room)
    yield ""


def _over_what(curves: Sequence[LearningCurve]) -> str:
    if any(curve.is_over_runs for curve in curves):
        return "mean and 95 % interval over runs, none where they agree"
    if any(point.interval for curve in curves for point in curve.points.values()):
        return "one run each: 95 % interval over its instances, which says nothing of another seed"
    return "one run each: no interval"


def _thin_out(steps: Sequence[int]) -> list[int]:
    """Returns the first and last step and as many between them as a table has room for."""
    if len(steps) <= _MOST_ROWS:
        return list(steps)
    last = len(steps) - 1
    places = sorted({round(place * last / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)})
    return [steps[place] for place in places]


def _point_text(curve: LearningCurve, step: int, write: Callable[[float], str]) -> str:
    """Returns a cell. It names how many runs are in the mean if others of the arm have not got as far."""
    point = curve.points.get(step)
    if point is None:
        return NOTHING
    text = write(point.mean)
    if point.interval is not None:
        low, high = point.interval
        text = f"{text} ({write(low)} to {write(high)})"
    if point.runs < len(curve.arm.runs):
        text = f"{text}, {point.runs} of {len(curve.arm.runs)} runs"
    return text


def _difference_lines(made: Comparison) -> Iterator[str]:
    for pair in made.pairs:
        which = name_candidate(pair.candidate, made)
        if pair.held_out:
            yield pair_line(pair.held_out) + which
        if pair.gain:
            yield gain_line(pair.gain) + which
        for part, (gain, held_out) in pair.parts.items():
            if held_out:
                yield pair_line(held_out, part) + which
            if gain:
                yield gain_line(gain, part) + which
