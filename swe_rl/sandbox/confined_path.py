"""This module reads and writes files of a working copy from outside, without ever leaving the copy.

Invariants:
- Folders are walked one by one relative to an open folder and never through a link that the kernel follows by itself:
  a link is read and resolved here, within the copy, so a command that swaps links meanwhile gains nothing.
- A written file replaces what had its name (also a link); it is written aside, then renamed.
"""

import contextlib
import errno
import os
import posixpath
import stat
from dataclasses import dataclass
from pathlib import Path

from swe_rl.sandbox.sandbox import SandboxError

# Linux follows as many links of one path before it takes them for a circle.
_MAX_LINKS = 40
Root = Path | int  # This is the working copy: its path, or an open descriptor of it.
# With these flags a folder is opened itself: a link in its place is an error.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MissingFileError(SandboxError, FileNotFoundError):
    """The file to read is not there. That is a fact about what the commands did, and no broken sandbox."""


def read_confined(root: Root, path: str, *, workdir: str, max_bytes: int) -> bytes:
    """Returns the file's bytes. Raises MissingFileError where there is no file.

    Raises SandboxError where the path leaves `root`, is no regular file, or is one that is too large.
    """
    folder, name = _open_parent(root, path, workdir, follow_last=True)
    try:
        # Without O_NONBLOCK, the open of a named pipe would wait for a writer.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _as_sandbox_error(path, error) from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SandboxError(f"{path!r} in the sandbox is not a regular file")
    with open(handle, "rb") as reader:  # noqa: PTH123 - a descriptor
        data = reader.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise SandboxError(f"{path!r} in the sandbox is larger than {max_bytes} bytes (sandbox.max_file_mb)")
    return data


def write_confined(root: Root, path: str, content: bytes, *, workdir: str, uid: int | None) -> None:
    """Creates or replaces a file, and makes missing folders; all belongs to `uid` where that is given.

    Raises SandboxError where the path leaves `root`, or where the file cannot be written.
    """
    folder, name = _open_parent(root, path, workdir, make=True, uid=uid)
    aside = f".{name[:100]}.{os.getpid()}.new"
    try:
        mode = _mode_of(folder, name)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with open(handle, "wb") as writer:  # noqa: PTH123 - a descriptor
            writer.write(content)
            os.fchmod(handle, mode)
            if uid is not None:
                os.fchown(handle, uid, uid)
        os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)  # noqa: PTH105
    except OSError as error:
        _unlink_quietly(aside, folder)
        raise _as_sandbox_error(path, error) from error
    finally:
        os.close(folder)


def ensure_folders(root: Path, path: str) -> None:
    """Makes `path` below `root` a chain of real folders; a file or link in the way is removed. Raises OSError."""
    here = os.open(root, _FOLDER)
    try:
        for part in _split_path(path):
            try:
                here = _step_into(here, part)
            except OSError:
                _unlink_quietly(part, here)
                os.mkdir(part, 0o755, dir_fd=here)
                here = _step_into(here, part)
    finally:
        os.close(here)


@dataclass(frozen=True, slots=True)
class _Link:
    """This is a link on the way of a path: the parts before it, where it points, and the parts after it."""

    before: list[str]
    target: str
    after: list[str]


def _open_parent(
    root: Root, path: str, workdir: str, *, follow_last: bool = False, make: bool = False, uid: int | None = None
) -> tuple[int, str]:
    """Returns an open descriptor of the file's folder, and the file's name in it.

    Every link is resolved within `root`. Raises SandboxError where the path leaves `root` or cannot be followed.
    """
    if path.startswith("/"):
        raise SandboxError(f"the path {path!r} is absolute; use one relative to {workdir}")
    todo = _parts_inside(path, path, workdir)
    for _ in range(_MAX_LINKS):
        try:
            place = _walk_parts(root, todo, follow_last, make, uid)
        except OSError as error:
            raise _as_sandbox_error(path, error) from error
        if not isinstance(place, _Link):
            return place
        if place.target.startswith("/"):
            target = place.target
        else:
            target = "/".join([*place.before, place.target])
        todo = _parts_inside(target, path, workdir) + place.after
    raise SandboxError(f"{path!r} in the sandbox goes through more than {_MAX_LINKS} links")


def _walk_parts(
    root: Root, parts: list[str], follow_last: bool, make: bool, uid: int | None
) -> tuple[int, str] | _Link:
    if not parts:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if isinstance(root, int):
        here = os.open(".", _FOLDER, dir_fd=root)
    else:
        here = os.open(root, _FOLDER)
    try:
        for index, part in enumerate(parts[:-1]):
            if (target := _link_target(here, part)) is not None:
                os.close(here)
                return _Link(parts[:index], target, parts[index + 1 :])
            here = _enter_folder(here, part, make, uid)
    except OSError:
        os.close(here)
        raise
    if follow_last and (target := _link_target(here, parts[-1])) is not None:
        os.close(here)
        return _Link(parts[:-1], target, [])
    return here, parts[-1]


def _parts_inside(target: str, path: str, workdir: str) -> list[str]:
    """Returns the parts of `target` below the workdir. Raises SandboxError when it leads out of the workdir."""
    if target.startswith("/"):
        target = posixpath.relpath(target, workdir)
    clean = posixpath.normpath(target)
    if clean == ".." or clean.startswith("../") or "\0" in clean:
        raise SandboxError(f"the path {path!r} leaves the sandbox's folder; use one relative to {workdir}")
    return _split_path(clean)


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _enter_folder(here: int, part: str, make: bool, uid: int | None) -> int:
    try:
        return _step_into(here, part)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(part, 0o755, dir_fd=here)
        if uid is not None:
            os.chown(part, uid, uid, dir_fd=here, follow_symlinks=False)
        return _step_into(here, part)


def _step_into(here: int, part: str) -> int:
    there = os.open(part, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _mode_of(folder: int, name: str) -> int:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    if stat.S_ISREG(status.st_mode):
        return stat.S_IMODE(status.st_mode) & 0o777
    return 0o644


def _unlink_quietly(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _as_sandbox_error(path: str, error: OSError) -> SandboxError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFileError(f"there is no file {path!r} in the sandbox")
    return SandboxError(f"{path!r} in the sandbox cannot be used: {error.strerror or error}")
