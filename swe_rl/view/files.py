"""This module keeps what was read of files that others write meanwhile, with the state in which each file was read.

Invariants:
- A file is parsed again only when it has changed.
- A run shows what is in its own folder: a link that leads out of it is followed nowhere.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import Any, TypeVar

from swe_rl.errors import UserError
from swe_rl.logger.folder import RunFolder

T = TypeVar("T")


class ViewError(UserError):
    """The thing that was asked for cannot be shown; `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


class ParsedFiles:
    """This cache keeps what was read of files until they change. Several threads may use it at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[tuple[str, str], tuple[object, Any]] = {}

    def get(self, kind: str, paths: Sequence[Path], read: Callable[[], T]) -> T:
        """Returns what `read` returned for the files in their present state, and calls it where they have changed.

        `kind` tells apart several things that are read of the same first file.
        """
        key = (kind, str(paths[0]))
        stamps = [stamp_of(path) for path in paths]
        with self._lock:
            known = self._kept.get(key)
        if known is not None and known[0] == stamps:
            return known[1]  # type: ignore[no-any-return]
        value = read()
        with self._lock:
            self._kept[key] = (stamps, value)
        return value


def find_link_out(folder: RunFolder) -> str:
    """Returns which file of a run is a link out of its folder, as a sentence's end; empty where none is.

    Checkpoints and exports may be on another disk: nobody reads them here.
    """
    kept_by_step = (folder.trajectories_folder, folder.programs_folder, folder.rows_folder)
    for place in (folder.path, *kept_by_step):
        for path in _links_in(place):
            if path not in (folder.checkpoints, folder.exports) and not is_inside(path, folder.path):
                return f"{path.relative_to(folder.path)} is a link out of the run's folder, and is not followed"
    return ""


def _links_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_symlink())
    except OSError:
        return []


def is_inside(path: Path, folder: Path) -> bool:
    """Tells whether a path, with all its links followed, is below a folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Returns a file's inode, size and time of the last change, or None where there is no regular file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    if S_ISREG(facts.st_mode):
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return None
