"""Reads and writes files of instances: JSON lines, JSON and parquet in SWE-bench's columns, and lists of ids.

Invariants:
- Whatever is wrong with a record is said with its file, its line or row, and its column.
- Every instance id is unique within what was read.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from swe_rl.config.dataset_files import no_such_instances
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.files.disk import write_text_atomic


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """Holds a record and the words that name its place: `FILE, line 3`."""

    where: str
    record: Mapping[str, Any]


def read_rows(path: Path) -> list[PlacedRecord]:
    """Returns all records of a file, in its order.

    Raises InstanceError naming the file, the line and what is wrong there.
    """
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix == ".json":
        return _json_rows(path)
    return [_parse_record(line, f"{path}, line {number}") for number, line in _numbered_lines(path) if line.strip()]


def read_instances(path: Path) -> list[Instance]:
    """Returns the instances of a file. Raises InstanceError naming the file, the line and what is wrong there."""
    rows = read_rows(path)
    instances = [Instance.from_record(row.record, row.where) for row in rows]
    if not instances:
        raise InstanceError(f"env.dataset={path} holds no instance; give a file with one JSON record a line")
    refuse_duplicates((instance.instance_id, row.where) for instance, row in zip(instances, rows, strict=True))
    return instances


def write_instances(path: Path, instances: Iterable[Instance]) -> None:
    """Writes one JSON record a line. Raises DiskError; then the file is as it was before."""
    write_text_atomic(path, "".join(json.dumps(instance.to_record(), sort_keys=True) + "\n" for instance in instances))


# It returns the ids of other splits, which are read only when they are needed.
Elsewhere = Callable[[], frozenset[str]]


def no_ids() -> frozenset[str]:
    return frozenset()


def select_instances(
    instances: Sequence[Instance], listing: str | Sequence[str], elsewhere: Elsewhere = no_ids
) -> list[Instance]:
    """Returns the instances that `listing` names, in its order.

    `listing` is a file of ids (one a line, `#` for comments), a pattern (`django__django-*`), or a list of ids. Raises
    InstanceError for an id that neither `instances` nor `elsewhere` have, or where none is left.
    """
    known = {instance.instance_id: instance for instance in instances}
    wanted = wanted_ids(listing, list(known))
    missing = [name for name in wanted if name not in known]
    if missing and len(missing) < len(wanted):
        missing = [name for name in missing if name not in elsewhere()]
        wanted = [name for name in wanted if name in known or name in missing]
    if missing or not wanted:
        raise InstanceError(_no_such(listing, missing, list(known)))
    return [known[name] for name in wanted]


def narrow_instances(
    instances: Sequence[Instance], listing: str | Sequence[str], elsewhere: Elsewhere = no_ids
) -> list[Instance]:
    """Returns the instances of an evaluated split that `listing` has.

    All are returned where it has none of them and means instances of other splits, as a list of instances to train on
    does. Raises InstanceError as `select_instances` does, and where the list means nothing.
    """
    known = [instance.instance_id for instance in instances]
    if not set(known).isdisjoint(wanted_ids(listing, known)):
        return select_instances(instances, listing, elsewhere)
    others = elsewhere()
    wanted = wanted_ids(listing, list(others))
    missing = [name for name in wanted if name not in others]
    if missing or not wanted:
        raise InstanceError(_no_such(listing, missing, known))
    return list(instances)


def _no_such(listing: str | Sequence[str], missing: Sequence[str], known: Sequence[str]) -> str:
    key = "env.instance_ids"
    if isinstance(listing, str):
        key = f"env.instances={listing}"
    return f"{key}: {no_such_instances(missing, known)}; correct it, or choose another env.split"


def wanted_ids(listing: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns the ids that `listing` means, each once, in its order.

    Raises InstanceError for a file that cannot be read.
    """
    if not isinstance(listing, str):
        wanted = [str(name) for name in listing]
    elif "*" in listing:
        wanted = [name for name in known if fnmatchcase(name, listing)]
    else:
        wanted = [line.split("#")[0].strip() for line in _read_lines(Path(listing), "env.instances")]
    return list(dict.fromkeys(name for name in wanted if name))


def refuse_duplicates(placed_ids: Iterable[tuple[str, str]]) -> None:
    """Refuses ids that are there twice, or differ in case alone. Each id comes with the place of its row.

    Such ids are one name of an image, and of a folder on some disks. Raises InstanceError naming both places.
    """
    seen: dict[str, tuple[str, str]] = {}
    for instance_id, where in placed_ids:
        first_id, first_where = seen.setdefault(instance_id.casefold(), (instance_id, where))
        if (first_id, first_where) == (instance_id, where):
            continue
        if first_id == instance_id:
            how = "is there twice"
        else:
            how = f"differs from {first_id!r} in case alone"
        raise InstanceError(
            f"{where}: instance {instance_id!r} {how}; the first is in {first_where}. Every id must be unique: remove "
            "one of the two rows, or change its id"
        )


def _parse_record(text: str, where: str) -> PlacedRecord:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise InstanceError(f"{where}: not JSON: {error}") from error
    return _make_row(record, where)


def _make_row(record: Any, where: str) -> PlacedRecord:
    if not isinstance(record, dict):
        raise InstanceError(f"{where}: a JSON object with SWE-bench's columns is needed, not {type(record).__name__}")
    return PlacedRecord(where, record)


def _json_rows(path: Path) -> list[PlacedRecord]:
    """Returns the rows of a list of records, or of an object of records by their ids. Raises InstanceError."""
    try:
        content = json.loads("\n".join(_read_lines(path, "env.dataset")))
    except ValueError as error:
        raise InstanceError(f"{path}: not JSON: {error}; one record a line is the ending .jsonl") from error
    if isinstance(content, dict):
        records = list(content.values())
    else:
        records = content
    if not isinstance(records, list):
        raise InstanceError(f"{path}: a list of records is needed, not {type(content).__name__}")
    return [_make_row(record, f"{path}, record {number}") for number, record in enumerate(records, start=1)]


def _parquet_rows(path: Path) -> list[PlacedRecord]:
    pyarrow = _import_pyarrow(path)
    try:
        records = pyarrow.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise InstanceError(f"env.dataset={path} cannot be read ({error}); give the path of a parquet file") from error
    return [PlacedRecord(f"{path}, row {number}", record) for number, record in enumerate(records)]


def _import_pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InstanceError(f"{path} is a parquet file, which needs pyarrow: pip install 'swe_rl[data]'") from error
    return pyarrow.parquet


def _numbered_lines(path: Path) -> Iterable[tuple[int, str]]:
    return enumerate(_read_lines(path, "env.dataset"), start=1)


def _read_lines(path: Path, key: str) -> list[str]:
    """Returns the lines of a file, which end with a newline alone.

    A record may hold any other character that Unicode counts as a line's end. Raises InstanceError.
    """
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "not UTF-8 text"
        raise InstanceError(f"{key}={path} cannot be read ({reason}); give the path of an existing file") from error
