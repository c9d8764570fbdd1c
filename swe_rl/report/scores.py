"""An evaluation's `eval.json`: for the page pass@k as tiles and repositories as rows, and a table for the terminal.

Invariants:
- Nothing is computed here; every number is of `rollout/pass_at_k`.
- For the page a file of another shape gives nothing rather than an error.
- On the terminal an evaluation of a part of its split says so in the first line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from swe_rl.logger.progress_text import span
from swe_rl.report.resolved import part_of

Record = Mapping[str, Any]
_SHOWN_REPOSITORIES = 30
_SHOWN_FAILING = 30
GOLD = "gold"  # the agent that hands in the data set's own patches


def score_tiles(scores: Record) -> list[dict[str, str]]:
    """pass@k with its 95 % interval, and what is behind it."""
    whole = _mapping(scores.get("all"))
    tiles = [
        {"label": "Resolved", "value": percent(rate.get("rate")), "detail": _interval(rate)}
        for rate in [_mapping(whole.get("resolved"))]
        if rate and _rates(whole)
    ]
    tiles += [
        {"label": f"pass@{k}", "value": percent(rate.get("rate")), "detail": _interval(rate)}
        for k, rate in _rates(whole).items()
    ]
    if tiles:
        detail = f"{whole.get('attempts')} attempts, {whole.get('solved_attempts')} of them solved it"
        solved = f"{whole.get('instances_solved')} of {whole.get('instances')}"
        tiles.append({"label": "Instances solved once", "value": solved, "detail": detail})
    return tiles


def score_rows(scores: Record, *, unrated: bool = False) -> dict[str, Any]:
    """`ks`, and a row a repository, the whole last: name, instances, solved once, attempts, a rate or None a k.

    Without any rate there are no rows, unless `unrated` asks for the counts alone.
    """
    whole = _mapping(scores.get("all"))
    ks = list(_rates(whole))
    rows = [_row(str(name), _mapping(scored), ks) for name, scored in _mapping(scores.get("repositories")).items()]
    return {"ks": ks, "rows": [*rows, _row("all", whole, ks)]} if ks or unrated else {"ks": [], "rows": []}


def _row(name: str, scored: Record, ks: list[str]) -> list[Any]:
    counts = [scored.get(key) for key in ("instances", "instances_solved", "attempts")]
    return [name, *counts, *(_mapping(_rates(scored).get(k)).get("rate") for k in ks)]


def _rates(scored: Record) -> dict[str, Record]:
    return {str(k): rate for k, rate in _mapping(scored.get("pass_at")).items() if isinstance(rate, Mapping)}


def percent(value: Any) -> str:
    """Of a share, for the page."""
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "–"


def _interval(rate: Record) -> str:
    low, high = rate.get("low"), rate.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return f"{100 * low:.1f}–{100 * high:.1f} %, {rate.get('num_instances')} instances{left_out(rate)}"


def left_out(rate: Record) -> str:
    """The instances that a rate is not about, and what they could make of it; nothing where it is about all."""
    missing, least, most = (rate.get(key) for key in ("left_out", "least", "most"))
    if not missing or not isinstance(least, int | float) or not isinstance(most, int | float):
        return ""
    return f"; {missing} left out, {100 * least:.1f} to {100 * most:.1f} % with them"


def _mapping(value: Any) -> Record:
    return value if isinstance(value, Mapping) else {}


def print_scores(scores: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if part := part_of(scores["all"]["instances"], scores.get("split_instances")):
        console.print(f"{scores.get('split')}: {part}")
    console.print(score_table(scores))
    if rate := scores["all"].get("resolved"):
        within = f"95 % interval {span(rate['low'], rate['high'])}"
        over = f"{rate['num_instances']} instances, {rate['num_samples']} attempts"
        console.print(f"resolved {_rate(rate['rate'])}, {within} ({over})")
    for k, rate in scores["all"]["pass_at"].items():
        within = f"95 % interval {span(rate['low'], rate['high'])}"
        over = f"{rate['num_instances']} instances{left_out(rate)}"
        console.print(f"pass@{k} {_rate(rate['rate'])}, {within} ({over})")
    if tricks := scores["all"].get("cheating"):
        shown = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in tricks.items())
        console.print(f"tricks that were tried: {shown}")
    failed = {name: count for name, count in scores["all"]["statuses"].items() if name.endswith("_error")}
    if failed:
        shown = ", ".join(f"{count} {name}" for name, count in failed.items())
        console.print(f"not counted, for infrastructure failed them: {shown}")
    _print_failing(scores, console)


def _print_failing(scores: Record, console: Console) -> None:
    """By name; where the patches were the data set's own, each with the last words of its tests."""
    failing, left_out = _mapping(scores.get("failing")), _mapping(scores.get("left_out"))
    names = list(failing)
    more = f", and {len(names) - _SHOWN_FAILING} more in eval.json" if len(names) > _SHOWN_FAILING else ""
    if names and scores.get("evaluated") == GOLD:
        console.print(f"not resolved by their own gold patches{more}:")
        for name in names[:_SHOWN_FAILING]:
            words = _mapping(failing[name])
            console.print(f"  {name}: {words.get('status')}: {words.get('last_words')}", markup=False, soft_wrap=True)
    elif names:
        console.print(f"not resolved: {', '.join(names[:_SHOWN_FAILING])}{more}", markup=False)
    if left_out:
        console.print(f"left out, as they are not proven: {len(left_out)}", markup=False)
    for name, reason in list(left_out.items())[:_SHOWN_FAILING]:
        console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)


def score_table(scores: dict[str, Any]) -> Table:
    """Repositories where there are several, and the whole."""
    shown = score_rows(scores, unrated=True)
    *repositories, whole = shown["rows"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("repository", overflow="fold")
    for name in ("instances", "solved once", "attempts", *(f"pass@{k}" for k in shown["ks"])):
        table.add_column(name, justify="right")
    if len(repositories) > 1:
        for row in repositories[:_SHOWN_REPOSITORIES]:
            table.add_row(*_cells(row))
        if len(repositories) > _SHOWN_REPOSITORIES:
            table.add_row(f"... {len(repositories) - _SHOWN_REPOSITORIES} more in eval.json")
    table.add_row(*_cells(whole), style="bold")
    return table


def _cells(row: Sequence[Any]) -> list[str]:
    name, instances, solved, attempts, *rates = row
    return [name, str(instances), str(solved), str(attempts), *(_rate(rate) for rate in rates)]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"
