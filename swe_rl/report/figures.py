"""The page's headline figures and its held-out table.

Invariants:
- Before and after are the first and the latest evaluation of the split that was evaluated first.
- A rate stands with its number of samples and its 95 % interval, over instances, or not at all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.logger.progress_text import duration, number
from swe_rl.logger.summary import before_and_after, finite_mean
from swe_rl.report.resolved import Change, is_int, pairs_of, part_of, resolved
from swe_rl.report.scores import percent, score_tiles

Record = Mapping[str, Any]

_SHOWN_TRICKS = 6


def eval_points(evals: Sequence[Record]) -> list[dict[str, Any]]:
    """One point a step of the main split, ascending: step, rate, samples, interval; rates in [0, 1]."""
    split = evals[0].get("split") if evals else None
    by_step = {event["step"]: event for event in evals if event.get("split") == split and is_int(event.get("step"))}
    return [_point(by_step[step]) for step in sorted(by_step)]


def _point(event: Record) -> dict[str, Any]:
    measured = resolved(event)
    return {
        "step": event["step"],
        "split": str(event.get("split")),
        "part": part_of(event.get("num_instances"), event.get("split_instances")),
        "rate": measured.rate if measured else None,
        "samples": measured.num_samples if measured else 0,
        "instances": measured.num_instances if measured else None,
        "low": measured.low if measured else None,
        "high": measured.high if measured else None,
    }


def figures(
    steps: Sequence[Record],
    points: Sequence[Record],
    summary: Record,
    wall_s: float | None,
    scores: Record | None = None,
    gained: Change | None = None,
) -> list[dict[str, str]]:
    """Label, value and detail of each tile; what is unknown is left out. `scores`: of an evaluation without steps;
    `gained`: the last of `points` against the first, over the instances of both."""
    tiles = score_tiles(scores or {})
    if not tiles:
        last = max((int(step["step"]) for step in steps), default=0)
        count = sum(int(step.get("num_trajectories") or 0) for step in steps)
        tiles = [*_resolved(points, gained), _tile("Steps", str(last), f"{count:,} trajectories")]
    rate = finite_mean(step.get("tokens_per_s") for step in steps)
    sampled = finite_mean(step.get("sampled_tokens_per_s") for step in steps)
    if rate is not None:
        detail = f"mean over steps; {sampled:,.0f} sampled tokens/s" if sampled is not None else "mean over steps"
        tiles.append(_tile("Response tokens/s", f"{rate:,.0f}", detail))
    if wall_s is not None:
        step_s = finite_mean(step.get("step_s") for step in steps)
        tiles.append(_tile("Wall time", duration(wall_s), f"{duration(step_s)} a step" if step_s is not None else ""))
    for key, value in summary.items():
        if key.startswith("peak_") and key.endswith("_gb") and isinstance(value, int | float):
            what = "of a GPU" if "gpu" in key else "of the main process"
            tiles.append(_tile("Peak memory", f"{number(value, '.2f')} GB", what))
    return tiles


def tricks_tile(records: Sequence[Record]) -> list[dict[str, str]]:
    """How often a reward without a solution was tried, in steps and evaluations; nothing where nobody tried."""
    tried: Counter[str] = Counter()
    for record in records:
        counts = record.get("cheating")
        tried.update({str(kind): int(count) for kind, count in counts.items()} if isinstance(counts, Mapping) else {})
    if not tried:
        return []
    detail = "\n".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in tried.most_common(_SHOWN_TRICKS))
    return [_tile("Tricks tried", f"{tried.total():,}", detail)]


def _resolved(points: Sequence[Record], gained: Change | None) -> list[dict[str, str]]:
    known = [point for point in points if point["rate"] is not None]
    if not known:
        return []
    before, after = known[0], known[-1]
    if before is after:
        return [_tile(f"Held-out resolved, step {before['step']}", percent(before["rate"]), _interval(before))]
    value = f"{percent(before['rate'])} → {percent(after['rate'])}"
    detail = f"step {before['step']}: {_interval(before)}\nstep {after['step']}: {_interval(after)}"
    gain, over = after["rate"] - before["rate"], "held-out, last evaluation less the first"
    if gained is not None:
        gain = gained.delta
        over = f"{100 * gained.low:+.1f} to {100 * gained.high:+.1f}, paired over {gained.num_instances} instances"
        over += f"; {gained.unpaired} in one evaluation only" if gained.unpaired else ""
    return [_tile("Held-out resolved rate", value, detail), _tile("Gain in points", f"{100 * gain:+.1f}", over)]


def instance_rows(evals: Sequence[Record]) -> list[dict[str, Any]]:
    """Each held-out instance with (solved, samples) before and after; None where it was not measured."""
    before, after = (pairs_of(event) for event in before_and_after(evals))
    return [
        {"id": name, "before": before.get(name), "after": after.get(name)} for name in dict.fromkeys([*before, *after])
    ]


def _tile(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _interval(point: Record) -> str:
    over = point["part"] or (f"{point['instances']} instances" if point["instances"] else "")
    shown = f"{100 * point['low']:.1f}–{100 * point['high']:.1f} %, n = {point['samples']}"
    return f"{shown}, {over}" if over else shown
