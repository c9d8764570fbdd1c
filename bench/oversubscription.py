"""Routers as the load grows: from half of what the caches hold to six times it, in the simulator, with a plot.

    python -m bench.oversubscription --out docs/oversubscription.svg

Oversubscription is the programs' contexts, fully grown, over the tokens that all engines' caches hold.

Invariants:
- The draws are not those of the run that the simulator's speeds were fitted to, nor those that a setting was chosen by.
- Ratios are taken draw by draw, to the arm `default`; `best cap` is searched anew for each load, on that very load.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.simulate_load import Machine, Measured, add_load_arguments, machine, measure, workloads
from swe_rl.logger.disk import write_text_atomic
from swe_rl.report.compare.svg import INK, SOFT, Scale, element, grid_line, label, marker, style, tick_text, ticks

FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
ARMS = ("tr", "best_cap", "tr_atw01")
_NAMES = {"tr": "tr", "best_cap": "best cap that binds, each load its own", "tr_atw01": "tr, acting_token_weight=0.1"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 440, 64, 24, 92, 52


@dataclass(frozen=True, slots=True)
class Point:
    """An arm under one load; `low` and `high` are of the draws."""

    factor: float
    programs: int
    ratio: float
    low: float
    high: float
    cap: str  # what `best_cap` was


def sweep(on: Machine, factors: Sequence[float], *, seeds: int, first_seed: int) -> Iterator[tuple[str, Point]]:
    """Arm and point, load by load."""
    engines = on.config.layout.engines
    sample = workloads(400, 1, first_seed=first_seed)[0].steps[0]
    grown_tokens = fmean(program.total_tokens for program in sample)
    for factor in factors:
        programs = round(factor * engines * on.kv_tokens / grown_tokens)
        loads = workloads(programs, seeds, first_seed=first_seed)
        _, base = measure("default", on, loads)
        for arm in ARMS:
            told, found = measure(arm, on, loads)
            yield arm, _point(factor, programs, found, base, told if told != arm else "")


def _point(factor: float, programs: int, found: Sequence[Measured], base: Sequence[Measured], cap: str) -> Point:
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(found, base, strict=True)]
    return Point(factor, programs, fmean(ratios), min(ratios), max(ratios), cap)


def plot(points: dict[str, list[Point]], title: str) -> str:
    """An SVG document."""
    every = [one for found in points.values() for one in found]
    lowest, highest = min(0.9, *(one.low for one in every)), max(one.high for one in every)
    marks = ticks(lowest, highest)
    x = Scale(0.0, max(one.factor for one in every), _LEFT, _WIDTH - _RIGHT)
    y = Scale(lowest, highest, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        element("title", {}, title),
        element("rect", {"width": _WIDTH, "height": _HEIGHT, "fill": "#ffffff"}),
        label(20, 26, title, size=16, weight=600),
        label(20, 46, "tokens/s relative to the sticky router; the band spans the draws", color=SOFT),
    ]
    for mark in marks:
        parts.append(grid_line(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), strong=abs(mark - 1.0) < 1e-9))
        parts.append(label(_LEFT - 8, y(mark) + 4, tick_text(mark, marks), anchor="end", color=SOFT))
    for factor in range(int(max(one.factor for one in every)) + 1):
        parts.append(label(x(factor), _HEIGHT - _BOTTOM + 20, str(factor), anchor="middle", color=SOFT))
    below = "oversubscription: grown contexts over what the caches hold"
    parts.append(label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, below, anchor="middle", color=INK))
    for index, (arm, found) in enumerate(points.items()):
        parts += _curve(found, index, x, y)
        at = 24 + 60 * index + 225 * (index > 1)
        parts.append(marker(at, 68, style(index)))
        parts.append(label(at + 12, 72, _NAMES[arm]))
    frame = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {_WIDTH} {_HEIGHT}",
        "width": _WIDTH,
        "height": _HEIGHT,
        "role": "img",
        "font-family": "system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif",
    }
    return element("svg", frame, *parts, raw=True) + "\n"


def _curve(found: Sequence[Point], index: int, x: Scale, y: Scale) -> Iterator[str]:
    own = style(index)
    upper = [(x(one.factor), y(one.high)) for one in found]
    lower = [(x(one.factor), y(one.low)) for one in reversed(found)]
    yield element("polygon", {"points": _pairs([*upper, *lower]), "fill": own.color, "opacity": 0.12})
    line = _pairs([(x(one.factor), y(one.ratio)) for one in found])
    yield element("polyline", {"points": line, "fill": "none", "stroke": own.color, "stroke-width": 2})
    yield from (marker(x(one.factor), y(one.ratio), own) for one in found)


def _pairs(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweep oversubscription in the simulator.")
    parser.add_argument("--out", type=Path, required=True, help="the plot, an SVG")
    add_load_arguments(parser, seeds=5, first_seed=9)
    options = parser.parse_args()
    on = machine(options.engines, options.hardware, options.kv_tokens)
    points: dict[str, list[Point]] = {arm: [] for arm in ARMS}
    print(f"{'oversubscribed':>14} {'programs':>8}  {'arm':<22} {'to default':>10}  range")
    for arm, one in sweep(on, FACTORS, seeds=options.seeds, first_seed=options.first_seed):
        points[arm].append(one)
        name = f"{arm} = {one.cap}" if one.cap else arm
        print(
            f"{one.factor:>14} {one.programs:>8}  {name:<22} {one.ratio:>10.3f}  {one.low:.3f} - {one.high:.3f}",
            flush=True,
        )
    title = f"Qwen3-14B on {options.engines} engines of {options.kv_tokens:,} cached tokens, simulated"
    write_text_atomic(options.out, plot(points, title))


if __name__ == "__main__":
    main()
