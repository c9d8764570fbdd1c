"""Draws tokens/s by step as an SVG, and each arm's difference with its interval.

Invariants:
- Tokens/s start at zero, so that heights compare; a step that an arm lacks breaks its line.
- The look of the arms is that of `report/compare/svg.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from swe_rl.report.compare.compare import Arm, Comparison, Pair
from swe_rl.report.compare.svg import (
    INK,
    SOFT,
    WIDTH,
    Scale,
    Style,
    arm_style,
    choose_ticks,
    draw_axes,
    draw_band,
    draw_document,
    draw_legend,
    draw_points,
    draw_stroke,
    grid_line,
    legend_bottom,
    make_label,
    make_marker,
    step_scale,
    tick_text,
)

_PLOT_HEIGHT = 320
_FOREST_ROW = 30
_FOREST_LEFT = 300
_LONGEST_LABEL = 44


@dataclass(frozen=True, slots=True)
class Line:
    """The line of an arm by step: the mean over its repeats, and their lowest and highest."""

    arm: Arm
    style: Style
    average: float | None
    points: dict[int, tuple[float, float, float]]


def draw_comparison(made: Comparison) -> str:
    """Returns a whole document, light on any page."""
    lines = [
        Line(arm, arm_style(index), _average_of_arm(made, arm), _step_points(arm))
        for index, arm in enumerate(made.arms)
    ]
    top = legend_bottom(len(lines))
    bottom = top + _PLOT_HEIGHT
    height = bottom + 56
    title = "Rollout tokens/sec by step"
    if made.engines:
        title += f", {made.engines} engines"
    parts = [*draw_legend([_describe_line(line) for line in lines]), *_draw_rates(lines, top, bottom)]
    rows = [(pair, arm_style(index)) for index, pair in enumerate(made.pairs, 1) if pair.tokens]
    if rows:
        height += 74 + _FOREST_ROW * len(rows)
        parts += _draw_forest(rows, made.arms[0].label, bottom + 84)
    described = "; ".join(_describe_line(line) for line in lines)
    return draw_document(title, "dotted: averages", height, *parts, description=described)


def _average_of_arm(made: Comparison, arm: Arm) -> float | None:
    """Returns the average that the table prints: of two arms over the paired steps."""
    for pair in made.pairs:
        if pair.tokens and arm is pair.candidate:
            return pair.tokens.candidate_average
        if pair.tokens and len(made.pairs) == 1:
            return pair.tokens.baseline_average
    return arm.average()


def _step_points(arm: Arm) -> dict[int, tuple[float, float, float]]:
    by_step: dict[int, list[float]] = {}
    for (_, step), rate in arm.rates().items():
        if rate.tokens_per_s is not None:
            by_step.setdefault(step, []).append(rate.tokens_per_s)
    return {step: (fmean(rates), min(rates), max(rates)) for step, rates in sorted(by_step.items())}


def _describe_line(line: Line) -> str:
    average = "no complete step"
    if line.average is not None:
        average = f"average {line.average:.1f} tokens/sec"
    repeats = ""
    if len(line.arm.runs) > 1:
        repeats = f", {len(line.arm.runs)} runs (mean, lowest to highest)"
    return f"{line.arm.label}: {average}{repeats}"


def _draw_rates(lines: Sequence[Line], top: float, bottom: float) -> Iterator[str]:
    steps = sorted({step for line in lines for step in line.points})
    highest = max((point[2] for line in lines for point in line.points.values()), default=0.0) or 1.0
    x = step_scale(steps)
    y = Scale(0, highest * 1.06, bottom, top)
    yield from draw_axes("tokens/sec", steps, x, y)
    for line in lines:
        yield from _draw_line(line, steps, x, y)


def _draw_line(line: Line, steps: Sequence[int], x: Scale, y: Scale) -> Iterator[str]:
    if line.average is not None:
        ends = [(x.start, y(line.average)), (x.end, y(line.average))]
        yield draw_stroke(ends, line.style, width=1, opacity=0.55, dash="2 4")
    for run in _unbroken_runs(line, steps):
        mean, lowest, highest = ([(x(step), y(line.points[step][part])) for step in run] for part in range(3))
        if len(line.arm.runs) > 1:
            yield draw_band(lowest, highest, line.style)
        yield from draw_points(mean, line.style)


def _unbroken_runs(line: Line, steps: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for step in steps:
        if step in line.points:
            run.append(step)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _draw_forest(rows: Sequence[tuple[Pair, Style]], baseline: str, top: float) -> Iterator[str]:
    """Yields rows of a point and its interval, around the line of no difference."""
    ends = [0.0]
    for pair, _ in rows:
        assert pair.tokens is not None
        ends += [*(pair.tokens.interval_percent or ()), pair.tokens.delta_percent or 0.0]
    room = 0.08 * (max(ends) - min(ends)) or 1.0
    x = Scale(min(ends) - room, max(ends) + room, _FOREST_LEFT, WIDTH - 230)
    bottom = top + 8 + _FOREST_ROW * len(rows)
    yield make_label(20, top - 8, f"Delta % against {_shorten_label(baseline)}{_describe_intervals(rows)}", weight=600)
    marks = choose_ticks(x.low, x.high)
    for mark in marks:
        yield grid_line(x(mark), top + 4, x(mark), bottom, strong=mark == 0)
        yield make_label(x(mark), bottom + 18, tick_text(mark, marks), anchor="middle", color=SOFT)
    for index, (pair, style) in enumerate(rows):
        yield from _forest_row(pair, style, x, top + 22 + _FOREST_ROW * index)


def _describe_intervals(rows: Sequence[tuple[Pair, Style]]) -> str:
    over_runs = any(pair.tokens and pair.tokens.interval_percent for pair, _ in rows)
    if over_runs:
        return ", 95 % interval over pairs of runs"
    if any(pair.tokens and pair.tokens.runs > 1 for pair, _ in rows):
        return ": the runs agree, no interval"
    return ": one run an arm, no interval"


def _forest_row(pair: Pair, style: Style, x: Scale, y: float) -> Iterator[str]:
    tokens = pair.tokens
    if tokens is None or tokens.delta_percent is None:
        return
    said = f"{tokens.delta_percent:+.1f} %"
    if tokens.interval_percent:
        low, high = tokens.interval_percent
        said += f" ({low:+.1f} to {high:+.1f})"
        ends = [(x(low), y), (x(high), y)]
        yield draw_stroke(ends, style, width=3, dash="none")
    yield make_marker(x(tokens.delta_percent), y, style, size=6)
    yield make_label(_FOREST_LEFT - 14, y + 4, _shorten_label(pair.candidate.label), anchor="end")
    yield make_label(WIDTH - 212, y + 4, said, color=INK)


def _shorten_label(text: str) -> str:
    if len(text) <= _LONGEST_LABEL:
        return text
    return text[: _LONGEST_LABEL - 1] + "…"
