"""Files of instances: JSON lines in SWE-bench's columns, and lists of instance ids."""

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from swe_rl.env.instance import Instance, InstanceError


def read_instances(path: Path) -> list[Instance]:
    """Raises InstanceError naming the file, the line and what is wrong there."""
    instances = []
    for number, line in enumerate(_lines(path, "env.dataset"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InstanceError(f"{where}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise InstanceError(
                f"{where}: a JSON object with SWE-bench's columns is needed, not {type(record).__name__}"
            )
        instances.append(Instance.from_record(record, where))
    if not instances:
        raise InstanceError(f"env.dataset={path} holds no instance; give a file with one JSON record a line")
    _refuse_duplicates(instances, path)
    return instances


def write_instances(path: Path, instances: Iterable[Instance]) -> None:
    aside = path.with_name(f".{path.name}.aside")
    aside.write_text("".join(json.dumps(one.to_record(), sort_keys=True) + "\n" for one in instances), encoding="utf-8")
    aside.replace(path)


def select_instances(instances: Sequence[Instance], listing: str) -> list[Instance]:
    """Those whose ids the file `listing` has, one a line, `#` for comments; or that match it where it is a pattern
    (`django__django-*`). Raises InstanceError for an id that nothing has, or a pattern that matches none."""
    known = {one.instance_id: one for one in instances}
    if "*" in listing:
        wanted = [name for name in known if fnmatchcase(name, listing)]
    else:
        wanted = [line.split("#")[0].strip() for line in _lines(Path(listing), "env.instances")]
    wanted = [name for name in wanted if name]
    missing = [name for name in wanted if name not in known]
    if missing or not wanted:
        shown = ", ".join(missing[:5]) or "no id at all"
        raise InstanceError(
            f"env.instances={listing}: {shown} not among the {len(known)} instances of the split "
            f"(the first is {next(iter(known), 'none')}); correct the file or choose another env.split"
        )
    return [known[name] for name in wanted]


def _lines(path: Path, key: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InstanceError(f"{key}={path} cannot be read ({reason}); give the path of an existing file") from error


def _refuse_duplicates(instances: Sequence[Instance], path: Path) -> None:
    seen: set[str] = set()
    for one in instances:
        if one.instance_id in seen:
            raise InstanceError(f"{path}: instance {one.instance_id!r} is there twice; every id must be unique")
        seen.add(one.instance_id)
