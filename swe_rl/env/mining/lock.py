"""Keeps a list of mined tasks as names, numbers and hashes, from which any machine with an index makes the same rows.

Invariants:
- The list has no line of code and no statement: the licences of the projects are theirs.
- A row that comes out otherwise than it was is no row of the list: its hash names every column.
- An archive with another content than at the time is refused before anything is made of it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.mined_lists import LIST_SUFFIX
from swe_rl.env.mining.recipe import TaskRecipe

VERSION = 1
# A script, a reader of logs and an image are made of the other columns when a row is read.
_MADE_COLUMNS = frozenset({"eval_script", "log_parser", "eval_type", "image"})


@dataclass(frozen=True, slots=True)
class LockedTask:
    """Holds one task of a list: its id, how it is made, and what came out."""

    instance_id: str
    recipe: TaskRecipe
    sha256: str  # This is the hash of the proven row.
    archives: Mapping[str, str]  # It maps NAME-VERSION to the hash of the source distribution.
    licence: str = ""  # The release says so; lists of earlier versions do not have it.


@dataclass(frozen=True, slots=True)
class LockedList:
    """Holds a list of tasks, and the settings that all of its rows share."""

    python: str
    test_command: str
    heldout_share: float
    tasks: Sequence[LockedTask]

    def text(self) -> str:
        """Returns the list as a file has it: a line for each task, so that a longer list is a short difference."""
        tasks = [
            {
                "instance_id": task.instance_id,
                "recipe": task.recipe.to_record(),
                "sha256": task.sha256,
                "archives": dict(sorted(task.archives.items())),
                "licence": task.licence,
            }
            for task in sorted(self.tasks, key=lambda task: task.instance_id)
        ]
        settings = {"python": self.python, "test_command": self.test_command, "heldout_share": self.heldout_share}
        head = json.dumps({"version": VERSION, **settings, "tasks": []}).removesuffix("]}")
        lines = ",\n".join(map(json.dumps, tasks))
        return f"{head}\n{lines}\n]}}\n"


def lock_of(target: Path) -> Path:
    """Returns the place of the list that belongs to a file of instances."""
    return target.with_name(f"{target.stem}{LIST_SUFFIX}")


def read_list(path: Path) -> LockedList:
    """Returns the list of a file. Raises InstanceError for one that is missing or malformed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"it is of version {content['version']}, and this swe_rl reads {VERSION}")
        tasks = [_task_of(record) for record in content["tasks"]]
        return LockedList(str(content["python"]), str(content["test_command"]), float(content["heldout_share"]), tasks)
    except OSError as error:
        raise InstanceError(
            f"mine.lock: {path} cannot be read ({error.strerror}); job=mine writes such files"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InstanceError(
            f"mine.lock: {path} is no list of mined tasks ({error}); job=mine writes such files"
        ) from error


def _task_of(record: Mapping[str, Any]) -> LockedTask:
    recipe = TaskRecipe.from_record(record["recipe"])
    return LockedTask(
        instance_id=str(record["instance_id"]),
        recipe=recipe,
        sha256=str(record["sha256"]),
        archives=dict(record["archives"]),
        licence=str(record.get("licence", "")),
    )


def hash_of_row(instance: Instance) -> str:
    """Returns the hash of a proven row, over all columns that it is used with."""
    record = {key: value for key, value in instance.to_record().items() if key not in _MADE_COLUMNS}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
