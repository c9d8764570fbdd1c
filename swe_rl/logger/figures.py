"""Figures of a nested record under one name each.

Invariants:
- A name is the path of its keys, joined by `/`.
- Names are as many after a thousand steps as after one: a table with a row for each step of the run has none.
"""

from collections.abc import Mapping
from typing import Any

_HUGE = 2**1000  # a float can hold no integer that is much larger
_BY_STEP = frozenset({"begun"})  # tables whose keys are steps


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings become `outer/inner`."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            values |= {} if key in _BY_STEP else flat(value, f"{prefix}{key}/")
        else:
            values[f"{prefix}{key}"] = value
    return values


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record; true is 1. What is no number (a name, a list, nothing) is left out."""
    return {
        name: float(value)
        for name, value in flat(record).items()
        if isinstance(value, float) or (isinstance(value, int) and -_HUGE < value < _HUGE)
    }
