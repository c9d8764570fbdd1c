"""Writes files whole or not at all, and has one error for a disk that takes no more.

Invariants:
- A file under its own name is always complete: text goes into a neighbour first, is flushed to the disk, then renamed.
- A failed write leaves the old file as it was and no neighbour behind, but in a folder that takes no change any more:
  `remove_asides` removes it once the folder does.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from swe_rl.errors import RunError
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.files.kill_point import kill_point

_log = logging.getLogger(__name__)
# `write_bytes_atomic` names files so.
_ASIDE = re.compile(r"\..+\.\d+\.[0-9a-f]{12}\.tmp")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_WAY_OUT = {
    errno.ENOSPC: "free some space or point {key} at another disk",
    errno.EDQUOT: "your quota is used up: free some space or point {key} at another disk",
    errno.EIO: "the disk reports a hardware or network fault: point {key} at another disk",
    errno.EROFS: "the file system is mounted read-only: point {key} at another disk",
    errno.EACCES: "this user may not write there: change the permissions or {key}",
}
_RESUME = "trainer.resume=auto continues from the last checkpoint"
_AGAIN = {"job.output": "the same command writes it anew", "env.proofs": "the same command goes on where it was"}


class DiskError(RunError):
    """A file of the run cannot be read or written."""


def disk_error(path: Path, error: OSError, *, key: str = "paths.outputs") -> DiskError:
    """Returns the one wording of a failed write: path, cause, MB free, way out. `key` says where the path is."""
    way_out = _WAY_OUT.get(error.errno or 0, "check the folder or point {key} elsewhere").format(key=key)
    return DiskError(
        f"cannot write {path}: {error.strerror or error} ({free_mb(path)} MB free there); {way_out}. "
        f"What was on the disk before is intact; {_AGAIN.get(key, _RESUME)}."
    )


@contextmanager
def placed_by(key: str, path: Path) -> Iterator[None]:
    """Raises DiskError that names `key` for what writes `path`, aside or in parts, where `key` says where that is."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error, key=key) from error
    except DiskError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise disk_error(path, error.__cause__, key=key) from error.__cause__


@contextmanager
def only_shown(path: Path) -> Iterator[None]:
    """Warns of a disk that does not take a file from which nothing is learned or resumed: it ends nothing."""
    try:
        yield
    except DiskError as error:
        cause = error.__cause__ or error
        _log.warning("%s is not written, and the run goes on without it: %s", path, cause)


@contextmanager
def as_os_errors(path: Path) -> Iterator[None]:
    """Raises OSError for errors of libraries in Rust, as safetensors, which say `... (os error 28)` in one of their
    own.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            number = None
        else:
            number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def free_mb(path: Path) -> str:
    """Returns free space in MB (10^6 bytes) of the nearest existing parent, '?' where that cannot be asked."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            return str(shutil.disk_usage(folder).free // 1_000_000)
    return "?"


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file of a folder that may be another user's. Raises OSError for whatever is no regular file.

    A named pipe there, opened as a file, would hold up its reader for ever.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def read_file(path: Path) -> bytes:
    """Returns all of a file. Raises OSError, as `open_file`."""
    with open_file(path) as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a file holds; {} where it is missing, cannot be read or holds none."""
    try:
        content = decode_json(read_file(path))
    except (OSError, ValueError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def write_text_atomic(path: Path, text: str) -> None:
    """Writes text. Raises DiskError; then the file is as it was before."""
    write_bytes_atomic(path, text.encode("utf-8", "replace"))


def write_json_atomic(path: Path, obj: Any) -> None:
    """Writes indented strict JSON with a last newline. Raises DiskError; then the file is as it was before."""
    write_bytes_atomic(path, encode_json(obj, indent=True) + b"\n")


def write_bytes_atomic(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Writes bytes. Raises DiskError; then the file is as it was before.

    `mode` has the file's permissions, from its first byte on; None: what the umask leaves.
    """
    # Hosts may share the folder, so the name has a number that no other process draws.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_folder_mode(mode))
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        kill_point("file_aside")
        aside.replace(path)
        _fsync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with suppress(OSError):
            aside.unlink()


def remove_asides_of(path: Path, pid: int | None = None) -> None:
    """Removes what killed writers of `path` left: all of them, or the process `pid` alone."""
    for aside in path.parent.glob(f".{path.name}.{'*' if pid is None else pid}.*.tmp"):
        if _ASIDE.fullmatch(aside.name):
            with suppress(OSError):
                aside.unlink()


def remove_asides(folder: Path) -> None:
    """Removes what killed writers left below `folder`, where nobody else writes now; what cannot be removed stays."""
    for path in folder.rglob(".*.tmp"):
        if _ASIDE.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def _folder_mode(mode: int | None) -> int:
    """Returns the mode of a folder made for a file: whoever may read the file may enter."""
    if mode is None:
        return 0o777
    return mode | (mode & 0o444) >> 2


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot flush a folder; the rename itself stands.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
