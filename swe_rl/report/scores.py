"""An evaluation's `eval.json` for the page: pass@k as tiles, repositories as rows.

Invariants:
- Nothing is computed here; every number is of `rollout/pass_at_k`.
- A file of another shape gives nothing rather than an error.
"""

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]


def score_tiles(scores: Record) -> list[dict[str, str]]:
    """pass@k with its 95 % interval, and what is behind it."""
    whole = _mapping(scores.get("all"))
    tiles = [
        {"label": "Resolved", "value": _percent(rate.get("rate")), "detail": _interval(rate)}
        for rate in [_mapping(whole.get("resolved"))]
        if rate and _rates(whole)
    ]
    tiles += [
        {"label": f"pass@{k}", "value": _percent(rate.get("rate")), "detail": _interval(rate)}
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
    rows = [_row(str(name), _mapping(one), ks) for name, one in _mapping(scores.get("repositories")).items()]
    return {"ks": ks, "rows": [*rows, _row("all", whole, ks)]} if ks or unrated else {"ks": [], "rows": []}


def _row(name: str, one: Record, ks: list[str]) -> list[Any]:
    counts = [one.get(key) for key in ("instances", "instances_solved", "attempts")]
    return [name, *counts, *(_mapping(_rates(one).get(k)).get("rate") for k in ks)]


def _rates(one: Record) -> dict[str, Record]:
    return {str(k): rate for k, rate in _mapping(one.get("pass_at")).items() if isinstance(rate, Mapping)}


def _percent(value: Any) -> str:
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
