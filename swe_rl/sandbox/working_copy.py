"""Fast copies of small folder trees, and their removal.

Invariants:
- Links are copied as links, never followed; sockets, pipes and devices are left out.
- Permissions (plus owner read/write) and modification times are kept, so that git and Python caches stay valid.
- `remove_tree` never follows a link and gives up only after several tries (a dying process may still be writing).
"""

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

_SMALL_BYTES = 1 << 20


def copy_tree(source: Path, target: Path, *, uid: int | None = None) -> None:
    """Copies the folder `source` to the new folder `target`, owned by `uid` where given. Raises OSError."""
    target.mkdir(mode=0o700)
    _copy_entries(os.fspath(source), os.fspath(target), uid)
    _finish(os.fspath(target), source.stat(), uid, 0o700)


def _copy_entries(source: str, target: str, uid: int | None) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            _copy_entry(entry, f"{target}/{entry.name}", uid)


def _copy_entry(entry: "os.DirEntry[str]", to: str, uid: int | None) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(entry.path), to)  # noqa: PTH115, PTH211 - strings all along: this is the hot path
        if uid is not None:
            os.lchown(to, uid, uid)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(to, 0o700)  # noqa: PTH102
        _copy_entries(entry.path, to, uid)
        _finish(to, status, uid, 0o700)
    elif stat.S_ISREG(status.st_mode):
        _copy_file(entry.path, to, status.st_size)
        _finish(to, status, uid, 0o600)


def _copy_file(source: str, to: str, size_bytes: int) -> None:
    if size_bytes > _SMALL_BYTES:
        shutil.copyfile(source, to)
        return
    with open(source, "rb", buffering=0) as reader, open(to, "xb", buffering=0) as writer:  # noqa: PTH123
        while data := reader.read(_SMALL_BYTES):
            writer.write(data)


def _finish(path: str, status: os.stat_result, uid: int | None, at_least: int) -> None:
    if uid is not None:
        os.chown(path, uid, uid)
    os.chmod(path, stat.S_IMODE(status.st_mode) & 0o777 | at_least)  # noqa: PTH101
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(path: Path, *, tries: int = 5) -> None:
    """Removes `path` with all below it; a path that is gone is fine. Raises OSError after the last try."""
    for left in reversed(range(tries)):
        if not path.exists():
            return
        try:
            shutil.rmtree(path)
        except OSError:
            if not left:
                raise
            open_up(path)
            time.sleep(0.02)


def open_up(path: Path) -> None:
    """Gives the owner all permissions on the folders below `path`: a command may have taken them off its own."""
    with contextlib.suppress(OSError):
        path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for child in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):
                if not child.is_symlink():
                    child.chmod(0o700)
