"""Files that are on the disk when the call returns, hashed while they are written.

Invariants:
- Bytes go through `os.write` only, so a full disk is an OSError with its errno, never a half-written success.
- A file's content and its directory entry are both fsynced.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from swe_rl.host.kill_point import kill_point

Chunk = bytes | memoryview


def write_file(path: Path, chunks: Iterable[Chunk]) -> tuple[int, str]:
    """Creates `path` (it must not exist) and returns its size in bytes and sha256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for chunk in chunks:
            digest.update(chunk)
            _write_all(descriptor, memoryview(chunk), os.write)
            size += len(chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    kill_point("checkpoint_files")
    return size, digest.hexdigest()


def sync_folder(path: Path) -> None:
    """Makes creations and renames in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_all(descriptor: int, data: memoryview, write: Callable[[int, memoryview], int]) -> None:
    while len(data) > 0:
        data = data[write(descriptor, data) :]
