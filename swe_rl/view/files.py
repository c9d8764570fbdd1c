"""This module keeps what was read of files that others write meanwhile, with the state in which each file was read.

Invariants:
- A file is parsed again only when it has changed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import Any, TypeVar

from swe_rl.errors import UserError

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


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Returns a file's inode, size and time of the last change, or None where there is no regular file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    if S_ISREG(facts.st_mode):
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return None
