"""This module finds the files that `sft.data` names and yields their records with their places.

Invariants:
- A folder stands for all files below it whose ending is known, in the order of their paths. A folder that is a run's is
  not looked into here.
- An attempt that lies in a folder in two formats is read once: `X.atif.json` beside `X.traj.json`, as `job=eval` writes
  it, and `trajectory.json` beside the file of an agent's own, as Harbor does.
- A line ends with a newline alone: a message may hold any other character that Unicode counts as a line's end.
- Parquet gives every object the fields of all rows' objects. Those that are null there are fields that an object does
  not have, and are left out. A null reward beside a status is kept: so we write an attempt that got none.
- Rows are yielded one by one, so a large file is not in memory twice.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.imitation.formats import is_trajectory
from swe_rl.imitation.record import KEY, DataError
from swe_rl.imitation.verdict import lost_reward

ENDINGS = (".jsonl", ".ndjson", ".json", ".traj", ".parquet")
_LINES = (".jsonl", ".ndjson")
_ROWS_AT_ONCE = 256
# Of an attempt in both formats the first one is read: every release wrote its reward there.
_ATIF = ".atif.json"
_MINI_SWE = ".traj.json"
# Harbor's ATIF lies beside what the agent wrote. We read these agents' own files, which tell more: Harbor turns what
# mini-swe-agent said into reasoning.
_HARBOR_ATIF = "trajectory.json"
_KNOWN_OWN = ("mini-swe-agent.trajectory.json", "swe-agent.trajectory.json")


def list_files(entry: str) -> list[Path]:
    """Returns the files that one entry of `sft.data` names. Raises DataError."""
    path = Path(entry).expanduser()
    if path.is_file():
        if path.suffix not in ENDINGS:
            raise DataError(f"{KEY}: {path} has none of the endings that are read: {', '.join(ENDINGS)}.")
        return [path]
    if not path.is_dir():
        raise DataError(f"{KEY}: {path} is not there. Name a file, a folder of files, or the folder of a run.")
    files = sorted(inner for inner in path.rglob("*") if inner.suffix in ENDINGS and inner.is_file())
    if not files:
        raise DataError(f"{KEY}: {path} has no file with one of the endings {', '.join(ENDINGS)}, and is no run's.")
    there = set(files)
    return [file for file in files if not _is_repeated(file, there)]


def _is_repeated(file: Path, there: Collection[Path]) -> bool:
    """Tells whether the file beside it has the same attempt in the format that is preferred."""
    if file.name == _HARBOR_ATIF:
        return any(file.with_name(name) in there for name in _KNOWN_OWN)
    if file.name.endswith(f".{_HARBOR_ATIF}") and file.name not in _KNOWN_OWN:
        return file.with_name(_HARBOR_ATIF) in there
    if not file.name.endswith(_MINI_SWE):
        return False
    return file.with_name(file.name.removesuffix(_MINI_SWE) + _ATIF) in there


def iter_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each record of a file with the words that name its place. Raises DataError."""
    if path.suffix == ".parquet":
        yield from _parquet_records(path)
    elif path.suffix in _LINES:
        yield from _line_records(path)
    else:
        yield from _json_records(path)


def _line_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _object(_parse(line, where), where)
    except OSError as error:
        raise _unreadable(path, error) from error


def _json_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the one trajectory of a file, or the rows of a list, or of an object of rows by their names.

    A list of messages is one trajectory, as the first releases of mini-swe-agent wrote it.
    """
    try:
        content = _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    if isinstance(content, Mapping) and not is_trajectory(content) and _holds_rows(content):
        for name, record in content.items():
            yield f"{path}, entry {name}", _object(record, f"{path}, entry {name}")
    elif isinstance(content, list) and content and all(_is_message(value) for value in content):
        yield str(path), {"messages": content}
    elif isinstance(content, list):
        for number, record in enumerate(content, start=1):
            yield f"{path}, record {number}", _object(record, f"{path}, record {number}")
    else:
        yield str(path), _object(content, str(path))


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and not is_trajectory(value)


def _holds_rows(content: Mapping[str, Any]) -> bool:
    return bool(content) and all(isinstance(record, Mapping) and is_trajectory(record) for record in content.values())


def _parquet_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{KEY}: {path} is a parquet file, which needs pyarrow: pip install 'swe_rl[data]'.") from error
    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=_ROWS_AT_ONCE):
            rows: Sequence[Mapping[str, Any]] = batch.to_pylist()
            for record in rows:
                yield f"{path}, row {number}", _without_nulls(record)
                number += 1
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
        if lost_reward(value):
            kept["reward"] = None
        return kept
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _parse(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{KEY}: {where}: this is not UTF-8 text ({error}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{KEY}: {where}: this is not JSON ({error}).") from error


def _object(record: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise DataError(f"{KEY}: {where}: a record is an object, not {type(record).__name__}.")
    return record


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or str(error)
    return DataError(f"{KEY}: {path} cannot be read: {reason}.")
