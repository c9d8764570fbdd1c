"""Gives a run's page the figures of groups that flow: the age of what is trained, and whether slow groups starve.

Invariants:
- Steps are named twice: by the step that trained a group, and by the step in whose order it was begun. Over a whole run
  both have the same trajectories; where slow groups starved, what is trained would be shorter than what was begun.
- Nothing is said of a step by beginning before all its trajectories are trained: the first of them are the fast ones.
- A record of another shape gives nothing rather than an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.files.tables import as_mapping

Record = Mapping[str, Any]
# These ages have a colour of their own; the last one stands for all above it as well.
_AGES = 5
_KINDS = {"length": "sampled_tokens", "tools_s": "command_s"}


def flow_figures(steps: Sequence[Record]) -> dict[str, Any]:
    """Returns `staleness`, tokens of each step by age, and `trained` and `begun`, means a trajectory.

    The means are `length` in sampled tokens and `tools_s`, one entry a step. All is empty where no groups flowed.
    """
    tables = [_sums_by_step(step) for step in steps]
    if not any(tables):
        return {}
    totals: dict[int, dict[str, float]] = {}
    for table in tables:
        for number, sums in table.items():
            total = totals.setdefault(number, dict.fromkeys(sums, 0.0))
            for key, value in sums.items():
                total[key] += value
    whole = max(total["trajectories"] for total in totals.values())
    known = {number: total for number, total in totals.items() if total["trajectories"] == whole}
    trained = [{key: sum(sums[key] for sums in table.values()) for key in _SUMS} for table in tables]
    begun = [known.get(step["step"], _NOTHING) for step in steps]
    return {"staleness": _count_staleness(steps), "trained": _mean_times(trained), "begun": _mean_times(begun)}


_SUMS = ("trajectories", *_KINDS.values())
_NOTHING = dict.fromkeys(_SUMS, 0.0)


def _sums_by_step(step: Record) -> dict[int, dict[str, float]]:
    """Returns sums over the trajectories of a step, by the step in whose order they were begun."""
    table = step.get("begun")
    try:
        return {int(number): {key: float(sums[key]) for key in _SUMS} for number, sums in dict(table or {}).items()}
    except (TypeError, ValueError, KeyError):
        return {}


def _mean_times(sums: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    return {
        name: [round(total[key] / total["trajectories"], 3) if total["trajectories"] else None for total in sums]
        for name, key in _KINDS.items()
    }


def _count_staleness(steps: Sequence[Record]) -> dict[str, list[int]]:
    """Returns tokens by how many steps the trainer was ahead of the weights that sampled them."""
    rows: list[dict[int, int]] = []
    for step in steps:
        ages: dict[int, int] = {}
        counts = step.get("token_staleness")
        for age, count in as_mapping(counts).items():
            if str(age).isdecimal() and isinstance(count, int):
                shown = min(int(age), _AGES)
                ages[shown] = ages.get(shown, 0) + count
        rows.append(ages)
    shown_ages = sorted({age for ages in rows for age in ages})
    return {f"{age}{' or more' if age == _AGES else ''}": [ages.get(age, 0) for ages in rows] for age in shown_ages}
