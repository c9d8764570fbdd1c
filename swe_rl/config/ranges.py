"""This module says what each number of the schema may be. A range is part of the field's type, and is read by one rule,
`job=describe` and tests.

Invariants:
- Every number of the schema has a range, and no range lets nan or an infinity through.
- `replace_out_of_range` keeps everything but wrong numbers: a rule behind it never divides by a zero that the schema
  forbids.
- Standard library only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
# A number without a smaller end of its own may be as large as this.
LARGEST = 1e9


@dataclass(frozen=True, slots=True)
class Range:
    """Goes from `least` or just `above`, to `most` or just `below`. `or_zero` allows 0, too, if 0 has a meaning."""

    least: float | None = None
    above: float | None = None
    most: float = LARGEST
    below: float | None = None
    or_zero: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        if self.or_zero and value == 0:
            return True
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and value <= self.most and (self.below is None or value < self.below)

    def said(self, value: float = 0) -> str:
        """Returns words such as `at least 0 and below 1` or `0, or above 1`. The end that all numbers have is named
        only if `value` is beyond it."""
        ends = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        if self.below is not None or value <= self.most == LARGEST:
            del ends["at most"]
        words = [f"{word} {_format_number(end)}" for word, end in ends.items() if end is not None]
        return ("0, or " if self.or_zero else "") + " and ".join(words)

    def nearest(self, value: float) -> float | None:
        """Returns the end that a wrong value is beyond, or None if that end is no legal value, as for nan."""
        if self.least is not None and value < self.least:
            return self.least
        if value > self.most and self.below is None:
            return self.most
        return None


Count = Annotated[int, Range(least=1)]
Machines = Annotated[int, Range(least=1, most=100_000)]
MachinesOrNone = Annotated[int, Range(least=0, most=100_000)]
ZeroOrMore = Annotated[int, Range(least=0)]
PartOfMachine = Annotated[float, Range(least=0.001)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
BelowOne = Annotated[float, Range(least=0, below=1)]
OfAll = Annotated[float, Range(above=0, most=1)]
# Waiting for longer than 23 days overflows the clock of poll(2).
LONGEST_S = 2_000_000.0
Seconds = Annotated[float, Range(above=0, most=LONGEST_S)]
SecondsFromOne = Annotated[float, Range(least=1, most=LONGEST_S)]
# A process needs a few seconds to stop what it started.
EndSeconds = Annotated[float, Range(least=5, most=LONGEST_S)]
SecondsOrZero = Annotated[float, Range(least=0, most=LONGEST_S)]
Minutes = Annotated[int, Range(least=0, most=525_600)]
Port = Annotated[int, Range(least=0, most=65535)]
Seed = Annotated[int, Range(least=0, most=2**31 - 1)]
# The driver and other processes need some of a GPU's memory.
MOST_OF_A_GPU = 0.95
GpuShare = Annotated[float, Range(above=0, most=MOST_OF_A_GPU)]
OrAboveOne = Annotated[float, Range(above=1, or_zero=True)]
AtLeastOne = Annotated[float, Range(least=1)]
Reward = Annotated[float, Range(least=-1000, most=1000)]
Penalty = Annotated[float, Range(above=0, most=1000)]
# Squares and sums of larger ones leave float32, in which advantages and targets of a critic are computed.
LARGEST_REWARD = 1e12


@cache
def ranges_of(schema: Any) -> dict[str, Range]:
    """Maps the number fields of one dataclass to their ranges; `int | None` is a number."""
    return {
        name: allowed
        for name, hint in get_type_hints(schema, include_extras=True).items()
        if (allowed := _range_of(hint)) is not None
    }


def _range_of(hint: Any) -> Range | None:
    if get_origin(hint) in (Union, UnionType):
        return next((allowed for part in get_args(hint) if (allowed := _range_of(part))), None)
    extras = getattr(hint, "__metadata__", ())
    return next((extra for extra in extras if isinstance(extra, Range)), None)


def wrong_numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Range]]:
    """Yields key, value and range of each number of a configuration that is out of its range, rows of tables
    included."""
    schema: Any = type(node)
    allowed = ranges_of(schema)
    for item in fields(node):
        key = f"{prefix}{item.name}"
        value = getattr(node, item.name)
        # A rule of its own looks at the word that stands for a number (`auto`).
        is_number = value is not None and not isinstance(value, str)
        if is_number and item.name in allowed and value not in allowed[item.name]:
            yield key, value, allowed[item.name]
        for name, child in _child_tables(key, value).items():
            yield from wrong_numbers(child, f"{name}.")


def replace_out_of_range(node: T) -> T:
    """Returns the configuration with the schema's default in place of each number that is out of its range."""
    changed: dict[str, Any] = {}
    schema: Any = type(node)
    allowed = ranges_of(schema)
    for item in fields(node):  # type: ignore[arg-type]
        value = getattr(node, item.name)
        if isinstance(value, int | float) and item.name in allowed and value not in allowed[item.name]:
            changed[item.name] = item.default
        elif is_dataclass(value):
            changed[item.name] = replace_out_of_range(value)
        elif isinstance(value, dict):
            changed[item.name] = {
                name: replace_out_of_range(row) if is_dataclass(row) else row for name, row in value.items()
            }
    return replace(node, **changed)  # type: ignore[type-var]


def _child_tables(key: str, value: Any) -> dict[str, Any]:
    """Returns the dataclasses inside a value, by their full key."""
    if isinstance(value, dict):
        rows = {f"{key}.{name}": row for name, row in value.items()}
    else:
        rows = {key: value}
    return {name: row for name, row in rows.items() if is_dataclass(row)}


def _format_number(number: float) -> str:
    if abs(number) >= 1e5:
        return f"{number:,.0f}"
    return f"{number:g}"
