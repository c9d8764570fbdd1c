"""Draws the plot of a comparison as an SVG: tokens/s by step, and each arm's difference with its interval.

Invariants:
- Arms differ in shape and dash as well as in colour; the colours stay apart for the colour-blind (Okabe and Ito 2008).
- Tokens/s start at zero, so that heights compare; a step that an arm lacks breaks its line.
- Labels are escaped, and free of what XML cannot hold; nothing outside the file is referred to.
- There are seven colours, shapes and dashes; the eighth arm has the first colour again, with another dash.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from xml.sax.saxutils import escape, quoteattr

from swe_rl.report.compare.compare import Arm, Comparison, Pair

INK = "#1b2330"
SOFT = "#4a5565"
_GRID = "#e3e7ee"
_AXIS = "#7a8594"
# The colours are Okabe and Ito's, without yellow, which is too light for lines on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "12 4", "4 2", "1 2")
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross", "ring")
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Attributes = dict[str, str | float]
# Ticks of a plot lie inside the domain, at multiples of 1, 2, 2.5 or 5 times a power of ten.
_SIZES = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` of the data to `start..end` in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def choose_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Returns at most about `most` ticks, ascending; `whole`: at integers only, as steps are."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * power for factor in _SIZES if factor * power >= raw * 0.999)
    if whole:
        size = max(1.0, math.ceil(size))
    first = math.ceil(low / size - 1e-9)
    last = math.floor(high / size + 1e-9)
    return [index * size for index in range(first, last + 1)]


def tick_text(value: float, marks: Sequence[float]) -> str:
    """Returns a tick's text, with as many decimals as the distance of the marks needs."""
    size = min((after - before for before, after in zip(marks, marks[1:], strict=False)), default=1.0)
    digits = max(0, -math.floor(math.log10(size) + 1e-9)) if size > 0 else 0
    # Steps of 2.5 need one more.
    digits += round(size * 10**digits, 6) % 1 > 0
    return f"{value + 0.0:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Style:
    color: str
    # It is '' for a solid line.
    dash: str
    shape: str


def arm_style(index: int) -> Style:
    """Returns the style of the arm at `index`; the baseline, the first, is solid."""
    turn, place = divmod(index, len(_COLORS))
    return Style(_COLORS[place], _DASHES[(place + turn) % len(_DASHES)], _SHAPES[(place + turn) % len(_SHAPES)])


def make_element(name: str, attributes: Attributes, *children: str, raw: bool = False) -> str:
    """Returns an element. Children are text, or with `raw` elements made here."""
    written = "".join(f" {key}={quoteattr(_replace_illegal(str(value)))}" for key, value in attributes.items())
    inside = "\n".join(children) if raw else escape(_replace_illegal("".join(children)))
    if inside:
        return f"<{name}{written}>{inside}</{name}>"
    return f"<{name}{written}/>"


def _replace_illegal(text: str) -> str:
    return _ILLEGAL.sub("?", text)


def make_label(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    weight: int = 400,
    anchor: str = "start",
    color: str = INK,
    turned: bool = False,
) -> str:
    """Returns a label. A `turned` one is read from below, around its own place."""
    attributes: Attributes = {"x": x, "y": y, "font-size": size, "fill": color, "text-anchor": anchor}
    if weight != 400:
        attributes["font-weight"] = weight
    if turned:
        attributes["transform"] = f"rotate(-90 {x:g} {y:g})"
    return make_element("text", attributes, text)


def grid_line(x1: float, y1: float, x2: float, y2: float, *, strong: bool = False) -> str:
    color = _AXIS if strong else _GRID
    return make_element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": color, "stroke-width": 1})


def make_marker(x: float, y: float, style: Style, size: float = 4) -> str:
    """Returns a shape around a point, filled but for `ring`."""
    look: Attributes = {"fill": style.color, "stroke": "#ffffff", "stroke-width": 1}
    if style.shape == "ring":
        look = {"fill": "#ffffff", "stroke": style.color, "stroke-width": 2}
    if style.shape in ("circle", "ring"):
        return make_element("circle", {"cx": x, "cy": y, "r": size, **look})
    return make_element("path", {"d": _marker_path(style.shape, x, y, size), **look})


def _marker_path(shape: str, x: float, y: float, r: float) -> str:
    third = r / 3
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "triangle": ((0, -r * 1.2), (r * 1.1, r * 0.9), (-r * 1.1, r * 0.9)),
        "down": ((0, r * 1.2), (r * 1.1, -r * 0.9), (-r * 1.1, -r * 0.9)),
        "diamond": ((0, -r * 1.3), (r * 1.3, 0), (0, r * 1.3), (-r * 1.3, 0)),
        "cross": (
            (-third, -r), (third, -r), (third, -third), (r, -third), (r, third), (third, third),
            (third, r), (-third, r), (-third, third), (-r, third), (-r, -third), (-third, -third),
        ),
    }[shape]  # fmt: skip
    return "M" + "L".join(f"{x + dx:.2f},{y + dy:.2f}" for dx, dy in corners) + "Z"


_WIDTH = 920
_LEFT = 74
_RIGHT = 28
_PLOT_HEIGHT = 320
_ROW = 22
_FOREST_ROW = 30
_STEP_TICKS = 16
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
    top = 54 + _ROW * len(lines)
    bottom = top + _PLOT_HEIGHT
    rows = [(pair, arm_style(index)) for index, pair in enumerate(made.pairs, 1) if pair.tokens]
    height = bottom + 56 + (74 + _FOREST_ROW * len(rows) if rows else 0)
    title = "Rollout tokens/sec by step" + (f", {made.engines} engines" if made.engines else "")
    parts = [
        make_element("title", {}, title),
        make_element("desc", {}, "; ".join(_describe_line(line) for line in lines)),
        make_element("rect", {"width": _WIDTH, "height": height, "fill": "#ffffff"}),
        make_label(20, 26, title, size=16, weight=600),
        make_label(_WIDTH - _RIGHT, 26, "dotted: averages", anchor="end", color=SOFT),
        *_draw_legend(lines),
        *_draw_rates(lines, top, bottom),
        *(_draw_forest(rows, made.arms[0].label, bottom + 84) if rows else ()),
    ]
    frame: Attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {_WIDTH} {height}",
        "width": _WIDTH,
        "height": height,
        "role": "img",
        "font-family": "system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif",
    }
    return make_element("svg", frame, *parts, raw=True) + "\n"


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
    average = "no complete step" if line.average is None else f"average {line.average:.1f} tokens/sec"
    repeats = f", {len(line.arm.runs)} runs (mean, lowest to highest)" if len(line.arm.runs) > 1 else ""
    return f"{line.arm.label}: {average}{repeats}"


def _draw_legend(lines: Sequence[Line]) -> Iterator[str]:
    for index, line in enumerate(lines):
        y = 50 + _ROW * index
        yield _draw_stroke([(24, y), (60, y)], line.style)
        yield make_marker(42, y, line.style)
        yield make_label(70, y + 4, _describe_line(line))


def _draw_rates(lines: Sequence[Line], top: float, bottom: float) -> Iterator[str]:
    steps = sorted({step for line in lines for step in line.points})
    highest = max((point[2] for line in lines for point in line.points.values()), default=0.0) or 1.0
    margin = 0.5 if len(steps) < 2 else 0.02 * (steps[-1] - steps[0])
    x = Scale(steps[0] - margin, steps[-1] + margin, _LEFT, _WIDTH - _RIGHT)
    y = Scale(0, highest * 1.06, bottom, top)
    marks = choose_ticks(0, highest * 1.06)
    for mark in marks:
        yield grid_line(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), strong=mark == 0)
        yield make_label(_LEFT - 8, y(mark) + 4, tick_text(mark, marks), anchor="end", color=SOFT)
    for mark in choose_ticks(steps[0], steps[-1], _STEP_TICKS, whole=True):
        yield grid_line(x(mark), bottom, x(mark), bottom + 5, strong=True)
        yield make_label(x(mark), bottom + 20, f"{mark:.0f}", anchor="middle", color=SOFT)
    yield make_label((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 42, "step", anchor="middle", color=SOFT)
    yield make_label(20, (top + bottom) / 2, "tokens/sec", anchor="middle", color=SOFT, turned=True)
    for line in lines:
        yield from _draw_line(line, steps, x, y)


def _draw_line(line: Line, steps: Sequence[int], x: Scale, y: Scale) -> Iterator[str]:
    if line.average is not None:
        yield _draw_stroke([(x.start, y(line.average)), (x.end, y(line.average))], line.style, width=1, opacity=0.55)
    for run in _unbroken_runs(line, steps):
        if len(line.arm.runs) > 1:
            edge = [(x(step), y(line.points[step][2])) for step in run]
            edge += [(x(step), y(line.points[step][1])) for step in reversed(run)]
            yield make_element(
                "polygon", {"points": _point_pairs(edge), "fill": line.style.color, "fill-opacity": 0.14}
            )
        yield _draw_stroke([(x(step), y(line.points[step][0])) for step in run], line.style)
        if len(steps) <= 80:
            yield from (make_marker(x(step), y(line.points[step][0]), line.style) for step in run)


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


def _draw_stroke(points: Sequence[tuple[float, float]], style: Style, *, width: float = 2, opacity: float = 1) -> str:
    dash = style.dash if width > 1 else "2 4"
    attributes: Attributes = {
        "points": _point_pairs(points),
        "fill": "none",
        "stroke": style.color,
        "stroke-width": width,
    }
    return make_element("polyline", attributes | {"stroke-dasharray": dash or "none", "stroke-opacity": opacity})


def _point_pairs(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _draw_forest(rows: Sequence[tuple[Pair, Style]], baseline: str, top: float) -> Iterator[str]:
    """Yields rows of a point and its interval, around the line of no difference."""
    ends = [0.0]
    for pair, _ in rows:
        assert pair.tokens is not None
        ends += [*(pair.tokens.interval_percent or ()), pair.tokens.delta_percent or 0.0]
    room = 0.08 * (max(ends) - min(ends)) or 1.0
    x = Scale(min(ends) - room, max(ends) + room, _FOREST_LEFT, _WIDTH - 230)
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
        yield make_element(
            "polyline", {"points": _point_pairs(ends), "stroke": style.color, "stroke-width": 3, "fill": "none"}
        )
    yield make_marker(x(tokens.delta_percent), y, style, size=6)
    yield make_label(_FOREST_LEFT - 14, y + 4, _shorten_label(pair.candidate.label), anchor="end")
    yield make_label(_WIDTH - 212, y + 4, said, color=INK)


def _shorten_label(text: str) -> str:
    if len(text) <= _LONGEST_LABEL:
        return text
    return text[: _LONGEST_LABEL - 1] + "…"
