"""Gives figures of a nested record one name each.

Invariants:
- A name is the path of its keys, joined by `/`.
- Names are as many after a thousand steps as after one: a table with a row for each step of the run has none.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.logger.progress_text import LARGEST_FLOAT

# A float can hold no integer that is much larger.
_HUGE = 2**1000
# The keys of these tables are steps.
_BY_STEP = frozenset({"begun"})


def flatten_record(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a flat record: nested mappings become `outer/inner`."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            values |= {} if key in _BY_STEP else flatten_record(value, f"{prefix}{key}/")
        else:
            values[f"{prefix}{key}"] = value
    return values


def numeric_figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record; true is 1. What is no number (a name, a list, nothing) is left out."""
    return {
        name: float(value)
        for name, value in flatten_record(record).items()
        if isinstance(value, float) or (isinstance(value, int) and -_HUGE < value < _HUGE)
    }


def finite_number(value: Any) -> float | None:
    """Returns a number; None for what is no number, not finite, or an integer that no float can be."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT
    return float(value) if known else None
