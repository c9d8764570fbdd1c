"""Files that others write while they are read: which state they are in, and what was read of it.

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
    """What was asked for cannot be shown; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


class ParsedFiles:
    """What was read of files, until they change; safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[tuple[str, str], tuple[object, Any]] = {}

    def get(self, kind: str, paths: Sequence[Path], read: Callable[[], T]) -> T:
        key, stamps = (kind, str(paths[0])), [stamp_of(path) for path in paths]
        with self._lock:
            known = self._kept.get(key)
        if known is not None and known[0] == stamps:
            return known[1]  # type: ignore[no-any-return]
        value = read()
        with self._lock:
            self._kept[key] = (stamps, value)
        return value


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Which file it is, its size and when it changed; None where there is none, or no regular one."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns) if S_ISREG(facts.st_mode) else None
