"""A data set's own names of columns, as `env.columns` has them, made those of the readers.

Invariants:
- What the table leaves out is filled only where it follows from the rest: the name of a repository, and the commit of a
  folder that is no git repository.
- A folder is looked for beside the file that names it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.check.columns import SOURCE_COLUMNS, TREE_COLUMNS, absent_columns, renamed, unknown_names
from swe_rl.env.instance import InstanceError
from swe_rl.env.records import Row
from swe_rl.env.source_build.repository import is_address
from swe_rl.env.swe.swe_smith import name_of_base

_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS", "packages")
_EMPTY = ("patch", "test_patch")


def with_columns(
    rows: Sequence[Row], columns: Mapping[str, str], env_name: str, dataset: str, key: str = "env.columns"
) -> Sequence[Row]:
    """`key`: of the table. Raises InstanceError for a name that nothing reads and a column that no row has."""
    if not columns:
        return rows
    for problem in (*unknown_names(columns, env_name), *absent_columns(columns, (row.record for row in rows))):
        value = columns[problem.name]
        raise InstanceError(f"{key}.{problem.name}={value}: {problem.message} ({dataset}). Name {problem.fix}.")
    records = [renamed(row.record, columns) for row in rows]
    path = Path(dataset)
    folder = path if path.is_dir() else path.parent
    if env_name != "kodcode":
        records = [_completed(record, set(columns), folder) for record in records]
    elif "question_id" in columns:
        records = [record | {"question_id": _slug(record["question_id"])} for record in records]
    return [Row(row.where, record) for row, record in zip(rows, records, strict=True)]


def _completed(record: dict[str, Any], named: set[str], folder: Path) -> dict[str, Any]:
    """`named`: the columns of ours that the table has; all others are the row's own."""
    for name in named.intersection(_LISTS):
        record[name] = _listed(record[name])
    command = record.pop("test_command", None) if "test_command" in named else None
    parts = {name: record.pop(name) for name in SOURCE_COLUMNS if name in named}
    if any(parts.get(tree) for tree in TREE_COLUMNS):
        record["source"] = _source(parts, command, folder)
    elif command:  # of an image
        record["install_config"] = {"test_cmd": command, "log_parser": record.get("log_parser")}
    if not record.get("source") and record.get("PASS_TO_PASS") is None:
        record["PASS_TO_PASS"] = []
    instance_id = record["instance_id"] = _slug(record.get("instance_id"))
    record["repo"] = record.get("repo") or f"local/{instance_id}"
    tree = (record.get("source") or {}).get("tree", "") if parts else ""
    if not record.get("base_commit") and tree and not is_address(tree) and not (Path(tree) / ".git").exists():
        record["base_commit"] = name_of_base(instance_id)
    return record | {name: record.get(name) or "" for name in _EMPTY}


def _source(parts: Mapping[str, Any], command: Any, folder: Path) -> dict[str, Any]:
    source = {**parts, "test_command": command}
    for name in ("tree", "archive"):
        text = source.get(name)
        if isinstance(text, str) and text and not is_address(text):
            source[name] = str(folder.absolute() / Path(text).expanduser())
    return {name: value for name, value in source.items() if value}


def _slug(name: Any) -> str:
    """Ids are names of files as well."""
    return re.sub(r"[^\w.-]+", "_", str("" if name is None else name)).strip("._-")


def _listed(value: Any) -> Any:
    """A list, its JSON, or one name a line; null where the row says nothing."""
    if not isinstance(value, str):
        return value
    try:
        names = json.loads(value)
    except ValueError:
        names = None
    return names if isinstance(names, list) else [line.strip() for line in value.splitlines() if line.strip()]
