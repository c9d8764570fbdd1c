"""Engines that were lost and what it cost, for the page: from `engine_lost` and `engine_back`.

Invariants:
- A loss without a return has no time: the run ended before it, or the engine was given up.
- A malformed event is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.logger.progress_text import duration

Record = Mapping[str, Any]
_MAX_CHARS = 600


def losses(events: Sequence[Record]) -> list[dict[str, Any]]:
    """In order: `engine`, `at_s` since the run's first event, `reason`, `requests`, `work_s`, `away_s` or None."""
    origin_s = _number(events[0].get("time")) or 0.0 if events else 0.0
    rows: list[dict[str, Any]] = []
    for event in events:
        name, at_s = str(event.get("engine")), _number(event.get("time"))
        if event.get("event") == "engine_lost" and at_s is not None:
            rows.append(
                {
                    "engine": name[:_MAX_CHARS],
                    "at_s": round(at_s - origin_s, 3),
                    "reason": str(event.get("reason", ""))[:_MAX_CHARS],
                    "requests": int(_number(event.get("requests")) or 0),
                    "work_s": _number(event.get("work_s")) or 0.0,
                    "away_s": None,
                }
            )
        elif event.get("event") == "engine_back":
            for row in reversed(rows):
                if row["engine"] == name[:_MAX_CHARS] and row["away_s"] is None:
                    row["away_s"] = _number(event.get("away_s"))
                    break
    return rows


def losses_tile(rows: Sequence[Record]) -> list[dict[str, str]]:
    if not rows:
        return []
    away_s = sum(row["away_s"] or 0.0 for row in rows)
    gone = sum(row["away_s"] is None for row in rows)
    detail = f"away for {duration(away_s)} in all" + (f", {gone} not back" if gone else "")
    requests = sum(row["requests"] for row in rows)
    if requests:
        work_s = duration(sum(row["work_s"] for row in rows))
        detail += f"\n{requests} request{'s' if requests > 1 else ''} begun anew, {work_s} of work lost"
    return [{"label": "Engines lost", "value": str(len(rows)), "detail": detail}]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return float(value)
