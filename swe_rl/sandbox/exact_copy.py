"""This module copies what a sandbox wrote so that no command can tell the copy from it.

Invariants:
- Content, modes with all their bits, times, links, hard links within one copy, pipes, sockets, extended attributes and
  the marks of an overlay (whiteouts, opaque folders) are kept. Links are never followed.
- What belongs to the sandbox's user belongs to the other sandbox's user in the copy. All else keeps its owner.
- Nothing in the sandbox runs meanwhile. So nobody swaps a folder for a link.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

# The kernel keeps these attributes itself: what a copy may have is not a matter of what the other file has.
_KERNELS_OWN = ("security.",)
# The kernel's overlay marks folders with these.
_MARKS = ("trusted.overlay.", "user.overlay.")


class _Reached:
    """This lets an ordinary user read what is the user's own, whatever rights a command took, until `close`."""

    def __init__(self) -> None:
        self._before: list[tuple[str, int]] = []

    def reach(self, path: str, status: os.stat_result, needed: int) -> None:
        """Gives the owner the `needed` rights. Root has all."""
        mode = stat.S_IMODE(status.st_mode)
        if mode & needed != needed and os.geteuid() != 0:
            os.chmod(path, mode | needed)  # noqa: PTH101
            self._before.append((path, mode))

    def close(self) -> None:
        """Puts the rights back, the deepest path first."""
        for path, mode in reversed(self._before):
            os.chmod(path, mode)  # noqa: PTH101


@dataclass(slots=True)
class _Copying:
    owners: tuple[int, int] | None  # The user of the sandbox, and that of the copy.
    reached: _Reached
    first_names: dict[tuple[int, int], str] = field(default_factory=dict)  # Of files with several names.


def copy_exactly(source: Path, target: Path, owners: tuple[int, int] | None = None) -> None:
    """Copies a folder to a new one. What belongs to the first of `owners` belongs to the second in the copy.

    Raises OSError, also for a path that is too long for the kernel.
    """
    target.mkdir(mode=0o700)
    status = source.lstat()
    with contextlib.closing(_Reached()) as reached:
        copying = _Copying(owners, reached)
        _copy_below(os.fspath(source), os.fspath(target), status, copying, but=())
        _finish(os.fspath(source), os.fspath(target), status, copying)


def fill_exactly(source: Path, target: Path, owners: tuple[int, int] | None, but: Collection[str]) -> None:
    """Copies all that is in a folder into one that is there, `but` what has one of these names. Raises OSError."""
    with contextlib.closing(_Reached()) as reached:
        _copy_below(os.fspath(source), os.fspath(target), source.lstat(), _Copying(owners, reached), but)


def make_alike(source: Path, target: Path, owners: tuple[int, int] | None = None) -> None:
    """Makes an empty folder with the mode, the owner, the times and the attributes of another one. Raises OSError."""
    target.mkdir(mode=0o700)
    with contextlib.closing(_Reached()) as reached:
        copying = _Copying(owners, reached)
        _finish(os.fspath(source), os.fspath(target), source.lstat(), copying, but=_MARKS)


def _copy_below(source: str, target: str, status: os.stat_result, copying: _Copying, but: Collection[str]) -> None:
    copying.reached.reach(source, status, stat.S_IRUSR | stat.S_IXUSR)
    made: list[tuple[str, str, os.stat_result]] = []
    waiting = [(source, target)]
    while waiting:
        folder, copy = waiting.pop()
        for name in os.listdir(folder):  # noqa: PTH208
            if name in but and folder == source:
                continue
            path = f"{folder}/{name}"
            to = f"{copy}/{name}"
            below = os.lstat(path)
            if stat.S_ISDIR(below.st_mode):
                copying.reached.reach(path, below, stat.S_IRUSR | stat.S_IXUSR)
                os.mkdir(to, 0o700)  # noqa: PTH102
                made.append((path, to, below))
                waiting.append((path, to))
            else:
                _copy_entry(path, to, below, copying)
    # Each new entry changes its folder's time, so what is said of folders is copied last, the deepest first.
    for path, to, below in reversed(made):
        _finish(path, to, below, copying)


def _copy_entry(path: str, to: str, status: os.stat_result, copying: _Copying) -> None:
    mode = status.st_mode
    if status.st_nlink > 1:
        first = copying.first_names.setdefault((status.st_dev, status.st_ino), to)
        if first != to:
            os.link(first, to, follow_symlinks=False)  # noqa: PTH200
            return
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), to)  # noqa: PTH115, PTH211
    elif stat.S_ISREG(mode):
        copying.reached.reach(path, status, stat.S_IRUSR)
        shutil.copyfile(path, to)
    else:
        # A whiteout of an overlay is a device whose number is 0, which everybody may make.
        os.mknod(to, stat.S_IFMT(mode) | 0o600, status.st_rdev)
    _finish(path, to, status, copying)


def _finish(path: str, to: str, status: os.stat_result, copying: _Copying, but: tuple[str, ...] = ()) -> None:
    """Gives a copy the attributes, the owner, the mode and the times of what it is a copy of."""
    for name in _attributes_of(path):
        if not name.startswith((*_KERNELS_OWN, *but)):
            os.setxattr(to, name, os.getxattr(path, name, follow_symlinks=False), follow_symlinks=False)
    if os.geteuid() == 0:
        # A copy that an ordinary user makes is that user's, as all of the sandbox is.
        before, after = copying.owners or (0, 0)
        user = after if status.st_uid == before else status.st_uid
        group = after if status.st_gid == before else status.st_gid
        os.chown(to, user, group, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(to, stat.S_IMODE(status.st_mode))  # noqa: PTH101
    os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _attributes_of(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA, errno.EPERM):
            return []
        raise


def has_hard_links(folder: Path) -> bool:
    """Tells whether a file below a folder has several names. Raises OSError."""
    waiting = [(os.fspath(folder), folder.lstat())]
    with contextlib.closing(_Reached()) as reached:
        while waiting:
            above, of_above = waiting.pop()
            reached.reach(above, of_above, stat.S_IRUSR | stat.S_IXUSR)
            for name in os.listdir(above):  # noqa: PTH208
                path = f"{above}/{name}"
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((path, status))
                elif stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    return True
    return False
