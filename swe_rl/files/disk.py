"""Writes files whole or not at all and without secrets, and has one error for a disk that takes no more.

Invariants:
- A file under its own name is always complete: text goes into a neighbour first, is flushed to the disk, then renamed.
- A failed write leaves the old file as it was and no neighbour behind, but in a folder that takes no change any more:
  `remove_asides` removes it once the folder does.
- JSON on disk is strict: NaN and infinities become null, lone surrogates become '?'.
- A secret is the value of a variable whose name contains KEY, TOKEN, SECRET or PASSWORD. Left alone are values that
  cannot be secrets and would tear holes into every line: switches ('false'), short numbers and existing paths.
- Keys of a record are never touched, only its strings. What an agent wrote is data, and is never touched: a variable
  SOME_TOKEN=return would be in every patch. No secret of ours is where agents are.
"""

import errno
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from swe_rl.errors import RunError
from swe_rl.files.kill_point import kill_point

_log = logging.getLogger(__name__)
# `write_bytes_atomic` names files so.
_ASIDE = re.compile(r"\..+\.\d+\.[0-9a-f]{12}\.tmp")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
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
        number = None if isinstance(error, OSError) else _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def free_mb(path: Path) -> str:
    """Returns free space in MB (10^6 bytes) of the nearest existing parent, '?' where that cannot be asked."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            return str(shutil.disk_usage(folder).free // 1_000_000)
    return "?"


def encode_json(obj: Any, *, indent: bool = False) -> bytes:
    """Returns strict JSON of plain values, dataclasses, enums, paths and numpy scalars."""
    option = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(obj, default=_plain_value, option=option)
    # These are lone surrogates, or integers beyond 64 bits.
    except TypeError:
        return json.dumps(_clean_value(obj), indent=2 if indent else None, ensure_ascii=False).encode()


def decode_json(data: bytes | str) -> Any:
    """Returns a value; also reads the NaN and Infinity that other writers leave. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


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
    return content if isinstance(content, dict) else {}


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
    return 0o777 if mode is None else mode | (mode & 0o444) >> 2


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot flush a folder; the rename itself stands.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain_value(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


def _clean_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(_clean_value(key)): _clean_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_value(item) for item in value]
    return _clean_value(_plain_value(value))


MASK = "***"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SWITCHES = frozenset({"true", "false", "none", "null", "auto", "default", "disabled", "enabled", "offline", "online"})
# Shorter values are in too many words to be hidden: each line would have holes.
_MIN_CHARS = 4
# A number of fewer digits is a port or a count rather than a secret.
_MIN_DIGITS = 8


class Redactor:
    """Replaces every secret by `***`."""

    def __init__(self, secrets: frozenset[str]) -> None:
        forms = secrets | {json.dumps(secret)[1:-1] for secret in secrets}
        alternatives = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
        self._pattern = re.compile(alternatives) if alternatives else None
        self._bytes_pattern = re.compile(alternatives.encode()) if alternatives else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Redactor":
        variables = os.environ if environ is None else environ
        return cls(frozenset(value for name, value in variables.items() if _is_secret(name, value)))

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def json(self, encoded: bytes, keys: frozenset[str] | None = None) -> bytes:
        """Returns an encoded object without secrets; it costs one scan when there is nothing to hide.

        `keys` are those below which to look; None: all.
        """
        if self._bytes_pattern is None or not self._bytes_pattern.search(encoded):
            return encoded
        record = decode_json(encoded)
        if keys is None:
            return encode_json(self._value(record))
        return encode_json({key: self._value(value) if key in keys else value for key, value in record.items()})

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value


def _is_secret(name: str, value: str) -> bool:
    if not _SECRET_NAME.search(name) or len(value) < _MIN_CHARS or value.lower() in _SWITCHES:
        return False
    if value.isdigit() and len(value) < _MIN_DIGITS:
        return False
    return not (value.startswith("/") and Path(value).exists())
