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
from swe_rl.trainer.pulse import Beat, beating, no_beat

Chunk = bytes | memoryview
_READ_BYTES = 4 * 2**20


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


def file_sha256(path: Path, beat: Beat = no_beat) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in beating(iter(lambda: file.read(_READ_BYTES), b""), beat):
            digest.update(chunk)
    return digest.hexdigest()


def _write_all(descriptor: int, data: memoryview, write: Callable[[int, memoryview], int]) -> None:
    while len(data) > 0:
        data = data[write(descriptor, data) :]
