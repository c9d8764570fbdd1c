"""This module copies small folder trees fast, and removes trees of any kind.

Invariants:
- Links are copied as links, never followed; sockets, pipes and devices are left out.
- Permissions (plus owner read/write) and modification times are kept, so that git and Python caches stay valid.
- `remove_tree` never follows a link, also where somebody swaps a folder for one meanwhile, and gives up only after
  several tries (a dying process may still be writing). It removes trees of any depth: a command makes 1,500 nested
  folders in a blink, which is more than Python may recurse, a path may be long, and a process may hold open.
- A lease (see `lease`) goes last, so that what a process leaves that is killed meanwhile is still known for what it is.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from swe_rl.files.kill_point import kill_point

LEASE_NAME = "lease.json"
# Files up to this size are read and written in one piece here, without the costs of `shutil.copyfile`.
_SMALL_BYTES = 1 << 20
# With these flags a folder is opened itself: a link in its place is an error.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(source: Path, target: Path, *, uid: int | None = None) -> None:
    """Copies the folder `source` to the new folder `target`, owned by `uid` where given. Raises OSError."""
    target.mkdir(mode=0o700)
    made = [(os.fspath(source), os.fspath(target), source.stat())]
    # The list grows meanwhile, by the folders that are found.
    for folder, copy, _ in made:
        with os.scandir(folder) as entries:
            for entry in entries:
                to = f"{copy}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(to, 0o700)  # noqa: PTH102
                    made.append((entry.path, to, status))
                else:
                    _copy_entry(entry.path, to, status, uid)
    # Each new entry changes its folder's time, so the times of folders are set last.
    for _, copy, status in reversed(made):
        _finish_entry(copy, status, uid, 0o700)


def _copy_entry(path: str, to: str, status: os.stat_result, uid: int | None) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(path), to)  # noqa: PTH115, PTH211 - strings all along: this is the hot path
        if uid is not None:
            os.lchown(to, uid, uid)
    elif stat.S_ISREG(status.st_mode):
        _copy_file(path, to, status.st_size)
        _finish_entry(to, status, uid, 0o600)


def _copy_file(source: str, to: str, size_bytes: int) -> None:
    if size_bytes > _SMALL_BYTES:
        shutil.copyfile(source, to)
        return
    with open(source, "rb", buffering=0) as reader, open(to, "xb", buffering=0) as writer:  # noqa: PTH123
        while data := reader.read(_SMALL_BYTES):
            writer.write(data)


def _finish_entry(path: str, status: os.stat_result, uid: int | None, at_least: int) -> None:
    if uid is not None:
        os.chown(path, uid, uid)
    os.chmod(path, stat.S_IMODE(status.st_mode) & 0o777 | at_least)  # noqa: PTH101
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(path: Path, *, tries: int = 5) -> None:
    """Removes `path` with all below it; a path that is gone is fine. Raises OSError after the last try."""
    for left in reversed(range(tries)):
        try:
            _remove_path(path)
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.02)


def remove_or_say(path: Path, say: Callable[[str], None]) -> None:
    """Removes `path` at the end of a run, which does not fail for what is left: `say` hears of it."""
    try:
        remove_tree(path)
    except OSError as error:
        say(f"{path} cannot be removed: {error}")


def _remove_path(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        _empty_folder(path)
        path.rmdir()
    else:
        path.unlink()


def _empty_folder(path: Path) -> None:
    """Removes all below a folder, with two descriptors and no recursion. Raises OSError.

    The way back up is "..", which must be the folder that we came from, because a process may move folders meanwhile.
    """
    # Each entry has a folder above, the name of the one in it that we went into, and the folders that wait there.
    above: list[tuple[os.stat_result, str, list[str]]] = []
    fd = _open_folder(path)
    try:
        waiting = _remove_files(fd, but=LEASE_NAME)
        while waiting or above:
            if waiting:
                name = waiting.pop()
                above.append((os.fstat(fd), name, waiting))
                fd = _move_descriptor(fd, _open_folder(name, fd))
                waiting = _remove_files(fd)
            else:
                status, name, waiting = above.pop()
                fd = _move_descriptor(fd, os.open("..", os.O_RDONLY | _FOLDER, dir_fd=fd))
                if not os.path.samestat(os.fstat(fd), status):
                    raise OSError(f"folder {name!r} was moved while it was removed")
                os.rmdir(name, dir_fd=fd)
        with contextlib.suppress(FileNotFoundError):
            os.stat(LEASE_NAME, dir_fd=fd, follow_symlinks=False)
            kill_point("leased_emptied")
            os.unlink(LEASE_NAME, dir_fd=fd)
    finally:
        os.close(fd)


def _move_descriptor(fd: int, to: int) -> int:
    os.close(fd)
    return to


def _remove_files(fd: int, but: str = "") -> list[str]:
    """Removes all files from an open folder, `but` one of this name. Returns the names of the folders in it."""
    with os.scandir(fd) as scanned:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scanned]
    for name, is_folder in entries:
        if not is_folder and name != but:
            os.unlink(name, dir_fd=fd)
    return [name for name, is_folder in entries if is_folder]


def _open_folder(path: Path | str, within: int | None = None) -> int:
    """Returns a descriptor of a folder, never through a link. Raises OSError.

    Its owner is allowed to do everything in it, because a command may have taken that permission off.
    """
    with contextlib.suppress(PermissionError):
        fd = os.open(path, os.O_RDONLY | _FOLDER, dir_fd=within)
        with contextlib.suppress(PermissionError):
            if os.fstat(fd).st_mode & 0o700 != 0o700:
                os.fchmod(fd, 0o700)
        return fd
    place = os.open(path, os.O_PATH | _FOLDER, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101 - the folder that is open, whatever its name leads to now
        return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    finally:
        os.close(place)
