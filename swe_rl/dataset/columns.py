"""Renames columns of rows: `env.columns` says which column, or which text, stands for each of ours.

Invariants:
- A value is the name of a column, `a.b` for `b` inside of `a`, or `=TEXT` for all rows, where `{column}` stands for
  what a row has. What is not named stays as it is.
- Nothing is guessed: a name of ours that nothing reads, and a column that no row has, are said by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.config.keys import nearest_words
from swe_rl.config.schema import EnvConfig

Record = Mapping[str, Any]
TREE_COLUMNS = ("tree", "archive", "sdist")
SOURCE_COLUMNS = (*TREE_COLUMNS, "python", "setup", "packages")  # each is a part of `source` by itself
_OF_ISSUES = (
    "instance_id",
    "problem_statement",
    "repo",
    "base_commit",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "image",
    "test_command",
    "log_parser",
    "eval_script",
    "version",
    "hints_text",
    "difficulty",
    "source",
    *SOURCE_COLUMNS,
)
_OF_FUNCTIONS = ("question_id", "question", "solution", "test", "test_info", "difficulty")
_PLACE = re.compile(r"\{([^{}]*)\}")
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ColumnProblem:
    """Says what is wrong with a column. `name` is our name for it, the key below `env.columns`."""

    name: str
    message: str
    fix: str


def columns_of(env_name: str) -> tuple[str, ...]:
    """Returns our names of the columns that an environment reads, or none where its rows have no columns."""
    return {"bugs": (), "harbor": (), "humaneval": (), "kodcode": _OF_FUNCTIONS}.get(env_name, _OF_ISSUES)


def columns_for(env: EnvConfig, *, evaluated: bool) -> Mapping[str, str]:
    """Returns the names for the data that is read.

    With `evaluated` they are those of `env.eval_dataset`, where that is another data set.
    """
    if evaluated:
        return env.eval_columns
    return env.columns


def unknown_names(columns: Mapping[str, str], env_name: str) -> Iterator[ColumnProblem]:
    known = columns_of(env_name)
    for name in columns:
        if not known:
            yield ColumnProblem(name, f"env={env_name} brings its own instances, and reads no column", "env=jsonl")
        elif name not in known:
            near = nearest_words(name, known) or known
            yield ColumnProblem(name, f"nothing reads a column {name}", f"one of {', '.join(near)}")


def absent_columns(columns: Mapping[str, str], records: Iterable[Record]) -> Iterator[ColumnProblem]:
    """Finds columns that no row has. `records` are those of a whole split."""
    rows = list(records)
    present = list(dict.fromkeys(str(name) for row in rows for name in row))
    shown = ", ".join(present[:_MOST_SHOWN]) + (", ..." if len(present) > _MOST_SHOWN else "")
    for name, value in columns.items() if rows else ():
        for column in _columns_in(value):
            if not any(_has_column(row, column) for row in rows):
                near = nearest_words(column, present) or present
                yield ColumnProblem(
                    name, f"there is no column {column}; the rows have {shown}", f"one of {', '.join(near[:5])}"
                )


def rename_columns(record: Record, columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the record as our readers want it. A column that this row lacks is null."""
    return {**record, **{name: _column_value(record, value) for name, value in columns.items()}}


def _columns_in(value: str) -> Sequence[str]:
    if value.startswith("="):
        return _PLACE.findall(value)
    return [value]


def _column_value(record: Record, value: str) -> Any:
    if not value.startswith("="):
        return _value_at(record, value)
    return _PLACE.sub(lambda place: _as_text(_value_at(record, place.group(1))), value[1:])


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value)


def _has_column(record: Record, column: str) -> bool:
    if column in record:
        return True
    first, dot, rest = column.partition(".")
    inner = record.get(first)
    return bool(dot) and isinstance(inner, Mapping) and _has_column(inner, rest)


def _value_at(record: Record, column: str) -> Any:
    if column in record:
        return record[column]
    first, dot, rest = column.partition(".")
    inner = record.get(first)
    if dot and isinstance(inner, Mapping):
        return _value_at(inner, rest)
    return None
