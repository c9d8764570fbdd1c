"""Has what the pictures of a comparison share: their frame, legend and axes, and an arm's style, lines and markers.

Invariants:
- Arms differ in shape and dash as well as in colour; the colours stay apart for the colour-blind (Okabe and Ito 2008).
- Labels are escaped, and free of what XML cannot hold; nothing outside the file is referred to.
- There are seven colours, shapes and dashes; the eighth arm has the first colour again, with another dash.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

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
WIDTH = 920
LEFT = 74
RIGHT = 28
LEGEND_TOP = 54
_LEGEND_ROW = 22
_STEP_TICKS = 16
# A longer line has no markers.
_MOST_MARKERS = 80


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


def draw_document(title: str, note: str, height: float, *parts: str, description: str = "") -> str:
    """Returns a whole document, light on any page: a title, a note at its right end, and the parts below."""
    described = []
    if description:
        described = [make_element("desc", {}, description)]
    frame: Attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {WIDTH} {height}",
        "width": WIDTH,
        "height": height,
        "role": "img",
        "font-family": "system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif",
    }
    head = (
        make_element("title", {}, title),
        *described,
        make_element("rect", {"width": WIDTH, "height": height, "fill": "#ffffff"}),
        make_label(20, 26, title, size=16, weight=600),
        make_label(WIDTH - RIGHT, 26, note, anchor="end", color=SOFT),
    )
    return make_element("svg", frame, *head, *parts, raw=True) + "\n"


def legend_bottom(entries: int) -> int:
    """Returns the height at which a legend of so many entries ends."""
    return LEGEND_TOP + _LEGEND_ROW * entries


def draw_legend(texts: Sequence[str]) -> Iterator[str]:
    """Yields a row for each arm, in the arms' order."""
    for index, text in enumerate(texts):
        y = legend_bottom(index) - 4
        style = arm_style(index)
        yield draw_stroke([(24, y), (60, y)], style)
        yield make_marker(42, y, style)
        yield make_label(70, y + 4, text)


def step_scale(steps: Sequence[int]) -> Scale:
    """Returns the scale of ascending steps, with a margin at both ends."""
    margin = 0.5
    if len(steps) > 1:
        margin = 0.02 * (steps[-1] - steps[0])
    return Scale(steps[0] - margin, steps[-1] + margin, LEFT, WIDTH - RIGHT)


def draw_axes(title: str, steps: Sequence[int], x: Scale, y: Scale) -> Iterator[str]:
    """Yields the grid and the labels of a plot by step. `title` says what its heights are."""
    marks = choose_ticks(y.low, y.high)
    for mark in marks:
        yield grid_line(LEFT, y(mark), WIDTH - RIGHT, y(mark), strong=mark == 0)
        yield make_label(LEFT - 8, y(mark) + 4, tick_text(mark, marks), anchor="end", color=SOFT)
    bottom = y.start
    for mark in choose_ticks(steps[0], steps[-1], _STEP_TICKS, whole=True):
        yield grid_line(x(mark), bottom, x(mark), bottom + 5, strong=True)
        yield make_label(x(mark), bottom + 20, f"{mark:.0f}", anchor="middle", color=SOFT)
    yield make_label((LEFT + WIDTH - RIGHT) / 2, bottom + 42, "step", anchor="middle", color=SOFT)
    yield make_label(20, (y.end + bottom) / 2, title, anchor="middle", color=SOFT, turned=True)


def draw_stroke(
    points: Sequence[tuple[float, float]],
    style: Style,
    *,
    width: float = 2,
    opacity: float = 1,
    dash: str | None = None,
) -> str:
    """Returns a line through the points, dashed as the arm's style is unless `dash` is given."""
    attributes: Attributes = {"points": _point_pairs(points), "fill": "none", "stroke": style.color}
    attributes |= {"stroke-width": width, "stroke-dasharray": dash or style.dash or "none", "stroke-opacity": opacity}
    return make_element("polyline", attributes)


def draw_points(points: Sequence[tuple[float, float]], style: Style) -> Iterator[str]:
    """Yields a line through the points, and their markers unless there are too many."""
    yield draw_stroke(points, style)
    if len(points) <= _MOST_MARKERS:
        yield from (make_marker(x, y, style) for x, y in points)


def draw_band(lower: Sequence[tuple[float, float]], upper: Sequence[tuple[float, float]], style: Style) -> str:
    """Returns the area between two lines."""
    edge = _point_pairs([*upper, *reversed(lower)])
    return make_element("polygon", {"points": edge, "fill": style.color, "fill-opacity": 0.14})


def _point_pairs(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
