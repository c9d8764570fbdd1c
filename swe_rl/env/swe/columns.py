"""Renames a data set's own columns, as `env.columns` says, to those that the readers know.

Invariants:
- What the table leaves out is filled only where it follows from the rest: the name of a repository, and the commit of a
  folder that is no git repository.
- A folder is looked for beside the file that names it.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from swe_rl.dataset.columns import SOURCE_COLUMNS, TREE_COLUMNS, absent_columns, rename_columns, unknown_names
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.records import PlacedRecord
from swe_rl.env.source_build.repository import is_address
from swe_rl.env.swe.swe_smith import name_of_base
from swe_rl.files.lines import lines_of

# A data set may write these columns as text, so they are read as lists.
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS", "packages")
# Rows may lack these columns: who has an issue and tests need not have the patches.
_EMPTY = ("patch", "test_patch")


def with_columns(
    rows: Sequence[PlacedRecord], columns: Mapping[str, str], env_name: str, dataset: str, key: str = "env.columns"
) -> Sequence[PlacedRecord]:
    """Returns the rows with their columns renamed. `key` is the table's key, for messages.

    Raises InstanceError for a name that nothing reads and a column that no row has.
    """
    if not columns:
        return rows
    for problem in (*unknown_names(columns, env_name), *absent_columns(columns, (row.record for row in rows))):
        value = columns[problem.name]
        raise InstanceError(f"{key}.{problem.name}={value}: {problem.message} ({dataset}). Name {problem.fix}.")
    records = [rename_columns(row.record, columns) for row in rows]
    path = Path(dataset)
    folder = path if path.is_dir() else path.parent
    if env_name != "kodcode":
        places = [row.where for row in rows]
        records = [
            _complete_record(record, columns, folder, place) for record, place in zip(records, places, strict=True)
        ]
    elif "question_id" in columns:
        records = [record | {"question_id": _make_slug(record["question_id"])} for record in records]
    return [PlacedRecord(row.where, record) for row, record in zip(rows, records, strict=True)]


def _complete_record(record: dict[str, Any], named: Mapping[str, str], folder: Path, place: str) -> dict[str, Any]:
    """Returns a renamed record with what follows from the rest of it.

    `named` has the columns of ours that the table names; all others are the row's own. Raises InstanceError.
    """
    for name in _LISTS:
        if name in named:
            record[name] = _parse_list(record[name], f"{place}: column {named[name]!r} ({name})")
    command = record.pop("test_command", None) if "test_command" in named else None
    parts = {name: record.pop(name) for name in SOURCE_COLUMNS if name in named}
    if any(parts.get(tree) for tree in TREE_COLUMNS):
        record["source"] = _make_source(parts, command, folder)
    elif command:  # The command runs in an image, because the row names no tree.
        record["install_config"] = {"test_cmd": command, "log_parser": record.get("log_parser")}
    if not record.get("source") and record.get("PASS_TO_PASS") is None:
        record["PASS_TO_PASS"] = []
    instance_id = record["instance_id"] = _make_slug(record.get("instance_id"))
    record["repo"] = record.get("repo") or f"local/{instance_id}"
    tree = (record.get("source") or {}).get("tree", "") if parts else ""
    if not record.get("base_commit") and tree and not is_address(tree) and not (Path(tree) / ".git").exists():
        record["base_commit"] = name_of_base(instance_id)
    return record | {name: record.get(name) or "" for name in _EMPTY}


def _make_source(parts: Mapping[str, Any], command: Any, folder: Path) -> dict[str, Any]:
    """Returns column `source` made of its parts. Relative paths are below `folder`."""
    source = {**parts, "test_command": command}
    for name in ("tree", "archive"):
        text = source.get(name)
        if isinstance(text, str) and text and not is_address(text):
            source[name] = str(folder.absolute() / Path(text).expanduser())
    return {name: value for name, value in source.items() if value}


def _make_slug(name: Any) -> str:
    """Returns an id that can be the name of a file, because ids name files as well."""
    return re.sub(r"[^\w.-]+", "_", str("" if name is None else name)).strip("._-")


def _parse_list(value: Any, place: str) -> Any:
    """Returns a column's list, where it is a text that has one; null stays where the row says nothing.

    The text is a list as JSON or as Python writes it, or one name a line. Raises InstanceError for a text that begins
    as a list and is none: read as one name a line, it would be a test that no run has.
    """
    if not isinstance(value, str):
        return value
    for read in (json.loads, _python_list):
        try:
            names = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
            continue
        if isinstance(names, list):
            return names
    lines = [line.strip() for line in lines_of(value, ends=False) if line.strip()]
    if any(line.startswith("[") for line in lines):
        raise InstanceError(
            f"{place} is neither a list as JSON or Python writes it nor one name a line: {value.strip()[:80]!r}. Write "
            'it as JSON, for example ["tests/test_a.py::test_b"].'
        )
    return lines


def _python_list(text: str) -> Any:
    """Returns the value that the text is in Python. Raises ValueError or SyntaxError.

    Two texts without a comma between them, as numpy prints them, would become one text, so they are refused.
    """
    names = list(tokenize.generate_tokens(io.StringIO(text.strip()).readline))
    if any(first.type == second.type == tokenize.STRING for first, second in pairwise(names)):
        raise ValueError("two texts side by side")
    value = ast.literal_eval(text.strip())
    return list(value) if isinstance(value, tuple) else value
