"""Says how a mined task is made of releases, in names and numbers alone: no line of anybody's code is in it.

Invariants:
- A recipe and the archives that it names give the same row, on any machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any


class Edition(IntEnum):
    """Names the rules by which rows are made. A list says it of each row, so newer rules alter no row of a list.

    first: Of a test's docstring its first line is told. Packages of tests are those of a table.
    second: A docstring is told to its sentence's end. The table is longer, and the tree's groups for tests count, too.
    """

    first = 0
    second = 1


NEWEST_EDITION = Edition.second


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """Names what one task is made of.

    With `older` it is the difference of two releases, or those of its hunks that `hunks` counts. Without, it is a bug
    in the release: the swap of a token in a line of a file.
    """

    project: str
    release: str  # This is the newer one of two.
    older: str = ""
    hunks: tuple[int, ...] = ()
    tests: tuple[str, ...] = ()  # These tests told how to make it: those that its hunks turn, or that its bug breaks.
    file: str = ""
    line: int = 0
    family: str = ""
    right: str = ""
    wrong: str = ""
    until: str = ""  # A release without a date had the packages of this time.
    edition: Edition = Edition.first

    def to_record(self) -> dict[str, Any]:
        """Returns the fields that say something, with their values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        said = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items() if value}
        return said | ({"edition": int(self.edition)} if self.edition else {})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TaskRecipe":
        """Returns the recipe of a record. Raises TypeError, KeyError or ValueError for what is none."""
        values = dict(record)
        values["hunks"] = tuple(int(number) for number in values.get("hunks", ()))
        values["tests"] = tuple(str(name) for name in values.get("tests", ()))
        values["edition"] = Edition(values.get("edition", Edition.first))
        recipe = cls(**values)
        if not recipe.project or not recipe.release or not (recipe.older or recipe.file):
            raise ValueError("it names no release, or neither an older one nor a file")
        return recipe
