"""Files of instances: JSON lines, JSON and parquet in SWE-bench's columns, and lists of instance ids.

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

from swe_rl.env.instance import Instance, InstanceError
from swe_rl.logger.disk import write_text_atomic


@dataclass(frozen=True, slots=True)
class Row:
    """A record and the words that name its place: `FILE, line 3`."""

    where: str
    record: Mapping[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All records of a file, in its order. Raises InstanceError naming the file, the line and what is wrong there."""
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix == ".json":
        return _json_rows(path)
    return [_parsed(line, f"{path}, line {number}") for number, line in _numbered(path) if line.strip()]


def read_instances(path: Path) -> list[Instance]:
    """Raises InstanceError naming the file, the line and what is wrong there."""
    instances = [Instance.from_record(row.record, row.where) for row in read_rows(path)]
    if not instances:
        raise InstanceError(f"env.dataset={path} holds no instance; give a file with one JSON record a line")
    refuse_duplicates(instances, str(path))
    return instances


def write_instances(path: Path, instances: Iterable[Instance]) -> None:
    """Raises DiskError; then the file is as it was before."""
    write_text_atomic(path, "".join(json.dumps(instance.to_record(), sort_keys=True) + "\n" for instance in instances))


Elsewhere = Callable[[], frozenset[str]]  # the ids of other splits


def nowhere() -> frozenset[str]:
    return frozenset()


def select_instances(
    instances: Sequence[Instance], listing: str | Sequence[str], elsewhere: Elsewhere = nowhere
) -> list[Instance]:
    """Those whose ids the file `listing` has, one a line, `#` for comments; or that match it where it is a pattern
    (`django__django-*`); or those that it names itself where it is a list.

    Raises InstanceError for an id that neither they nor `elsewhere` have, or where none is left.
    """
    known = {instance.instance_id: instance for instance in instances}
    wanted = wanted_ids(listing, list(known))
    missing = [name for name in wanted if name not in known]
    if missing and len(missing) < len(wanted):
        missing = [name for name in missing if name not in elsewhere()]
        wanted = [name for name in wanted if name in known or name in missing]
    if missing or not wanted:
        shown = ", ".join(missing[:5]) or "no id at all"
        raise InstanceError(
            f"env.instances={listing}: {shown} not among the {len(known)} instances of the split "
            f"(the first is {next(iter(known), 'none')}); correct the file or choose another env.split"
        )
    return [known[name] for name in wanted]


def narrowed(
    instances: Sequence[Instance], listing: str | Sequence[str], elsewhere: Elsewhere = nowhere
) -> list[Instance]:
    """Of a split that is evaluated, those that `listing` has; all where it has none of them, as a list of instances to
    train on has none. Raises InstanceError as `select_instances` does, where it has some."""
    known = {instance.instance_id for instance in instances}
    if known.isdisjoint(wanted_ids(listing, list(known))):
        return list(instances)
    return select_instances(instances, listing, elsewhere)


def wanted_ids(listing: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """The ids that `listing` means, each once, in its order. Raises InstanceError for a file that cannot be read."""
    if not isinstance(listing, str):
        wanted = [str(name) for name in listing]
    elif "*" in listing:
        wanted = [name for name in known if fnmatchcase(name, listing)]
    else:
        wanted = [line.split("#")[0].strip() for line in _lines(Path(listing), "env.instances")]
    return list(dict.fromkeys(name for name in wanted if name))


def refuse_duplicates(instances: Sequence[Instance], name: str) -> None:
    """Raises InstanceError."""
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise InstanceError(f"{name}: instance {instance.instance_id!r} is there twice; every id must be unique")
        seen.add(instance.instance_id)


def _parsed(text: str, where: str) -> Row:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise InstanceError(f"{where}: not JSON: {error}") from error
    return _row(record, where)


def _row(record: Any, where: str) -> Row:
    if not isinstance(record, dict):
        raise InstanceError(f"{where}: a JSON object with SWE-bench's columns is needed, not {type(record).__name__}")
    return Row(where, record)


def _json_rows(path: Path) -> list[Row]:
    """A list of records, or an object of records by their ids."""
    try:
        content = json.loads("\n".join(_lines(path, "env.dataset")))
    except ValueError as error:
        raise InstanceError(f"{path}: not JSON: {error}; one record a line is the ending .jsonl") from error
    records = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(records, list):
        raise InstanceError(f"{path}: a list of records is needed, not {type(content).__name__}")
    return [_row(record, f"{path}, record {number}") for number, record in enumerate(records, start=1)]


def _parquet_rows(path: Path) -> list[Row]:
    pyarrow = _pyarrow(path)
    try:
        records = pyarrow.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise InstanceError(f"env.dataset={path} cannot be read ({error}); give the path of a parquet file") from error
    return [Row(f"{path}, row {number}", record) for number, record in enumerate(records)]


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InstanceError(f"{path} is a parquet file, which needs pyarrow: pip install 'swe_rl[data]'") from error
    return pyarrow.parquet


def _numbered(path: Path) -> Iterable[tuple[int, str]]:
    return enumerate(_lines(path, "env.dataset"), start=1)


def _lines(path: Path, key: str) -> list[str]:
    """Lines end with a newline alone: a record may hold any other character that Unicode counts as a line's end."""
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InstanceError(f"{key}={path} cannot be read ({reason}); give the path of an existing file") from error
