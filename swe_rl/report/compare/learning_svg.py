"""Draws what the arms of a comparison learned as an SVG: the held-out rate, and below it the reward, by step.

Invariants:
- Bands are 95 % intervals over runs. With one run an arm, whiskers of evaluations are intervals over instances.
- Colours, dashes and shapes are those of `report/compare/svg.py`.
"""

from collections.abc import Iterator, Sequence

from swe_rl.report.compare.compare import Arm, Comparison
from swe_rl.report.compare.learning import LearningCurve, held_out_curve, reward_curve
from swe_rl.report.compare.svg import (
    Scale,
    Style,
    arm_style,
    draw_axes,
    draw_band,
    draw_document,
    draw_legend,
    draw_points,
    draw_stroke,
    legend_bottom,
    step_scale,
)

_PANEL_HEIGHT = 240
_PANEL_ROOM = 84


def draw_learning(made: Comparison) -> str:
    """Returns a whole document, light on any page. A figure that no run has gets no panel."""
    held_out = [held_out_curve(arm) for arm in made.arms]
    reward = [reward_curve(arm) for arm in made.arms]
    panels = [
        (title, curves, factor)
        for title, curves, factor in (("held-out resolved, %", held_out, 100.0), ("reward", reward, 1.0))
        if any(curve.points for curve in curves)
    ]
    top = legend_bottom(len(made.arms))
    height = top + len(panels) * (_PANEL_HEIGHT + _PANEL_ROOM)
    parts = [*draw_legend([_describe_arm(arm) for arm in made.arms])]
    for place, (title, curves, factor) in enumerate(panels):
        parts += _draw_panel(title, curves, factor, top + 12 + place * (_PANEL_HEIGHT + _PANEL_ROOM))
    return draw_document("Learning by step", _describe_intervals([*held_out, *reward]), height, *parts)


def _describe_arm(arm: Arm) -> str:
    if len(arm.runs) > 1:
        return f"{arm.label}, {len(arm.runs)} runs"
    return arm.label


def _describe_intervals(curves: Sequence[LearningCurve]) -> str:
    if any(curve.is_over_runs for curve in curves):
        return "bands: 95 % intervals over runs"
    return "one run each: whiskers are 95 % intervals over its instances"


def _draw_panel(title: str, curves: Sequence[LearningCurve], factor: float, top: float) -> Iterator[str]:
    steps = sorted({step for curve in curves for step in curve.points})
    x = step_scale(steps)
    y = _panel_scale([factor * point.mean for curve in curves for point in curve.points.values()], factor, top)
    yield from draw_axes(title, steps, x, y)
    for index, curve in enumerate(curves):
        yield from _draw_curve(curve, arm_style(index), factor, x, y)


def _panel_scale(means: Sequence[float], factor: float, top: float) -> Scale:
    """Returns a scale that the curves themselves choose: an interval over two runs is wider than any picture."""
    room = 0.25 * (max(means) - min(means)) or 0.1 * factor
    low = min(means) - room
    if min(means) >= 0.0:
        low = 0.0
    return Scale(low, max(means) + room, top + _PANEL_HEIGHT, top)


def _draw_curve(curve: LearningCurve, style: Style, factor: float, x: Scale, y: Scale) -> Iterator[str]:
    yield from _draw_intervals(curve, style, factor, x, y)
    yield from draw_points([(x(step), y(factor * point.mean)) for step, point in curve.points.items()], style)


def _draw_intervals(curve: LearningCurve, style: Style, factor: float, x: Scale, y: Scale) -> Iterator[str]:
    """Yields a band over runs, or a whisker for each evaluation of the only run."""
    stretches: list[list[tuple[float, float, float]]] = [[]]
    for step, point in curve.points.items():
        if point.interval is None:
            # A band breaks where the runs agree: nothing is known of other runs there.
            stretches.append([])
            continue
        low, high = (y(min(y.high, max(y.low, factor * end))) for end in point.interval)
        stretches[-1].append((x(step), low, high))
    for stretch in filter(None, stretches):
        if curve.is_over_runs:
            yield draw_band([(at, low) for at, low, _ in stretch], [(at, high) for at, _, high in stretch], style)
        else:
            yield from (draw_stroke([(at, low), (at, high)], style, width=1) for at, low, high in stretch)
