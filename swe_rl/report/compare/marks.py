"""Elements of an SVG and the looks of its arms.

Invariants:
- Text and attributes are escaped, and free of what XML cannot hold.
- Seven colours, shapes and dashes; the eighth arm has the first colour again, with another dash.
"""

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

INK, SOFT, _GRID, _AXIS = "#1b2330", "#4a5565", "#e3e7ee", "#7a8594"
# Okabe and Ito's, without yellow, which is too light for lines on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "12 4", "4 2", "1 2")
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross", "ring")
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Attributes = dict[str, str | float]


@dataclass(frozen=True, slots=True)
class Style:
    color: str
    dash: str  # '' for a solid line
    shape: str


def style(index: int) -> Style:
    """Of the arm at `index`; the baseline, the first, is solid."""
    turn, place = divmod(index, len(_COLORS))
    return Style(_COLORS[place], _DASHES[(place + turn) % len(_DASHES)], _SHAPES[(place + turn) % len(_SHAPES)])


def element(name: str, attributes: Attributes, *children: str, raw: bool = False) -> str:
    """Children are text; `raw`: elements made here."""
    written = "".join(f" {key}={quoteattr(_legal(str(value)))}" for key, value in attributes.items())
    inside = "\n".join(children) if raw else escape(_legal("".join(children)))
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)


def label(
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
    """`turned`: read from below, around its own place."""
    attributes: Attributes = {"x": x, "y": y, "font-size": size, "fill": color, "text-anchor": anchor}
    if weight != 400:
        attributes["font-weight"] = weight
    if turned:
        attributes["transform"] = f"rotate(-90 {x:g} {y:g})"
    return element("text", attributes, text)


def grid_line(x1: float, y1: float, x2: float, y2: float, *, strong: bool = False) -> str:
    color = _AXIS if strong else _GRID
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": color, "stroke-width": 1})


def marker(x: float, y: float, own: Style, size: float = 4) -> str:
    """A shape around a point, filled but for `ring`."""
    look: Attributes = {"fill": own.color, "stroke": "#ffffff", "stroke-width": 1}
    if own.shape == "ring":
        look = {"fill": "#ffffff", "stroke": own.color, "stroke-width": 2}
    if own.shape in ("circle", "ring"):
        return element("circle", {"cx": x, "cy": y, "r": size, **look})
    return element("path", {"d": _path(own.shape, x, y, size), **look})


def _path(shape: str, x: float, y: float, r: float) -> str:
    third = r / 3
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "triangle": ((0, -r * 1.2), (r * 1.1, r * 0.9), (-r * 1.1, r * 0.9)),
        "down": ((0, r * 1.2), (r * 1.1, -r * 0.9), (-r * 1.1, -r * 0.9)),
        "diamond": ((0, -r * 1.3), (r * 1.3, 0), (0, r * 1.3), (-r * 1.3, 0)),
        "cross": (
            *((-third, -r), (third, -r), (third, -third), (r, -third), (r, third), (third, third)),
            *((third, r), (-third, r), (-third, third), (-r, third), (-r, -third), (-third, -third)),
        ),
    }[shape]
    return "M" + "L".join(f"{x + dx:.2f},{y + dy:.2f}" for dx, dy in corners) + "Z"
