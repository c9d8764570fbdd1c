"""Reads patches of earlier attempts that were not resolved from the folders of earlier runs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import InstanceError
from swe_rl.logger.jsonl import iter_jsonl

_MOST = 3  # an instance keeps its last three patches
_UNRESOLVED = "unresolved"  # this status says that a patch was graded and the tests rejected it


def read_siblings(folder: Path) -> dict[str, list[str]]:
    """Returns the patches that tests rejected by instance id, the latest last.

    `folder` is the folder of a run, or one that holds several. Raises InstanceError where no attempt is found.
    """
    patches: dict[str, list[str]] = {}
    attempts = 0
    for path in sorted(folder.rglob("*.jsonl")):
        for record in _read_attempts(path):
            attempts += 1
            name = record.get("instance_id")
            patch = record.get("patch")
            if (
                record.get("status") == _UNRESOLVED
                and isinstance(name, str)
                and isinstance(patch, str)
                and patch.strip()
            ):
                known = patches.setdefault(name, [])
                known[:] = [*(other for other in known if other != patch), patch][-_MOST:]
    if not attempts:
        raise InstanceError(
            f"env.siblings={folder} holds no attempt of an earlier run; give the folder of a run of job=rollout, "
            "job=eval or job=train, or one that holds several"
        )
    return patches


def _read_attempts(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of attempts in a file.

    Other files of a run have lines that are no attempts. They are skipped, and so is a file that cannot be read.
    """
    with suppress(OSError):
        for record in iter_jsonl(path):
            if "trajectory_id" in record:
                yield record
