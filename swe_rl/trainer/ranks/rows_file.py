"""Writes the rows of a request into one file, which all ranks of a trainer read.

Invariants:
- A file is written once, whatever the number of ranks, and read as mapped memory: ranks of one host share it.
- It holds JSON and numbers: nothing in it is executed. A file that is not whole is an error, never fewer rows.
- It is there until the request is answered; whoever maps it keeps what is mapped. What a killed driver left, the next
  group of the same run removes.
- The folder is one that every rank sees: ranks on other nodes have shown so when they started.

The file has 8 bytes of its mark, 8 bytes with the length of the header, the header (JSON, a list for each row), then
for each row its token ids, log-probabilities, weight versions, mask, advantages, rewards, routes and turns, each from a
multiple of 4 bytes on; the header's lists end with what a row has. In files of 0.4 the header has one advantage for
all tokens of a row, and nothing is behind the mask.
"""

import json
import math
import mmap
import secrets
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from swe_rl.algo.row import Row
from swe_rl.files.disk import disk_error
from swe_rl.trainer.trainer import TrainerError

_MARK = b"swe_rows"
_PREFIX = ".rows."
# Copies of a run leave out files with this suffix (hardware/sync).
_SUFFIX = ".tmp"
_LENGTHS = struct.Struct("<8sq")
# numpy reads float32 and int32 from any multiple of 4 bytes without a copy.
_ALIGN_BYTES = 4
_IDS = np.dtype("<i4")
_FLOATS = np.dtype("<f4")
_MASK = np.dtype("?")
_ROUTES = ("uint8", "uint16")


@dataclass(frozen=True, slots=True)
class RowsFile:
    """A name that stands for rows in what a driver sends to its ranks."""

    path: Path

    def rows(self) -> list[Row]:
        """Returns the rows, whose arrays are read-only views of the file. Raises TrainerError."""
        try:
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            return list(_read_rows(mapped))
        # JSON's errors are ValueErrors.
        except (OSError, ValueError, struct.error) as error:
            raise TrainerError(
                f"A step's rows cannot be read from {self.path} ({error}). Its folder has to be one that every node of "
                "the trainer sees under the same path: paths.outputs."
            ) from error


@contextmanager
def lend_rows(rows: Sequence[Row], folder: Path | None) -> Iterator[RowsFile]:
    """Yields a file of `rows`, gone afterwards. `folder` None stands for that of temporary files. Raises DiskError."""
    path: Path | None = None
    try:
        try:
            with _open_fresh(folder) as file:
                path = Path(file.name).absolute()
                # The file is not mapped here: a disk that is full would end this process.
                _write_rows(file, rows)
        except OSError as error:
            raise disk_error(path or folder or Path(tempfile.gettempdir()), error) from error
        yield RowsFile(path)
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink()


def _open_fresh(folder: Path | None) -> IO[bytes]:
    """Opens a new file. In a run's folder the umask says who may read it, as for its other files; else we alone may."""
    if folder is None:
        return tempfile.NamedTemporaryFile(prefix=_PREFIX, suffix=_SUFFIX, delete=False)
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"{_PREFIX}{secrets.token_hex(6)}{_SUFFIX}").open("xb")


def keep_rows(rows: Sequence[Row], path: Path) -> None:
    """Writes a file of `rows` that stays: it is whole, or not there. Raises DiskError."""
    with lend_rows(rows, path.parent) as file:
        try:
            file.path.replace(path)
        except OSError as error:
            raise disk_error(path, error) from error


def remove_left(folder: Path) -> None:
    """Removes what drivers left that were killed while their ranks read."""
    for path in folder.rglob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):
            path.unlink()


def _write_rows(file: IO[bytes], rows: Sequence[Row]) -> None:
    header = json.dumps([_describe_row(row) for row in rows]).encode()
    file.write(_LENGTHS.pack(_MARK, len(header)))
    _write_part(file, np.frombuffer(header, np.uint8))
    for row in rows:
        _write_part(file, row.token_ids.astype(_IDS, copy=False))
        if row.rollout_logprobs is not None:
            _write_part(file, row.rollout_logprobs.astype(_FLOATS, copy=False))
        _write_part(file, row.weight_versions.astype(_IDS, copy=False))
        _write_part(file, row.loss_mask)
        _write_part(file, row.advantage.astype(_FLOATS, copy=False))
        if row.rewards is not None:
            _write_part(file, row.rewards.astype(_FLOATS, copy=False))
        if row.routes is not None:
            _write_part(file, row.routes.astype(row.routes.dtype.newbyteorder("<"), copy=False))
        if row.turns is not None:
            _write_part(file, row.turns.astype(_IDS, copy=False))


def _write_part(file: IO[bytes], values: npt.NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(values).data)
    file.write(bytes(-values.nbytes % _ALIGN_BYTES))


def _describe_row(row: Row) -> list[Any]:
    """Returns the header's list for a row. Each array has a length of its own: the trainer has to name a
    malformed row.
    """
    logprobs, rewards = (None if values is None else len(values) for values in (row.rollout_logprobs, row.rewards))
    names = [row.trajectory_id, row.group_id, len(row.advantage), row.trained]
    last: list[Any] = [None, row.segment or None, None]
    if row.routes is not None:
        last[0] = [row.routes.dtype.name, *row.routes.shape]
    if row.turns is not None:
        last[2] = len(row.turns)
    while last and last[-1] is None:
        last.pop()
    return [*names, len(row.token_ids), logprobs, len(row.weight_versions), len(row.loss_mask), rewards, *last]


def _read_rows(mapped: mmap.mmap) -> Iterator[Row]:
    mark, header_bytes = _LENGTHS.unpack_from(mapped)
    if mark != _MARK:
        raise ValueError("it is no file of rows")
    described = json.loads(mapped[_LENGTHS.size : _LENGTHS.size + header_bytes])
    at = _LENGTHS.size + _align_size(header_bytes)

    def part(kind: "np.dtype[Any]", count: int) -> npt.NDArray[Any]:
        nonlocal at
        # This raises ValueError where the file ends before.
        values: npt.NDArray[Any] = np.frombuffer(mapped, kind, count, at)
        at += _align_size(values.nbytes)
        return values

    def routes(kind: str, *shape: int) -> npt.NDArray[Any]:
        if kind not in _ROUTES:
            raise ValueError(f"its experts are numbered by {kind}")
        return part(np.dtype(kind).newbyteorder("<"), math.prod(shape)).reshape(shape)

    for trajectory_id, group_id, advantage, trained, ids, logprobs, versions, mask, *more in described:
        token_ids = part(_IDS, ids)
        if logprobs is None:
            rollout_logprobs = None
        else:
            rollout_logprobs = part(_FLOATS, logprobs)
        weight_versions = part(_IDS, versions)
        loss_mask = part(_MASK, mask)
        rewards, experts, segment, turns = [*more, *[None] * 4][:4]
        yield Row(
            trajectory_id,
            group_id,
            token_ids,
            loss_mask,
            rollout_logprobs,
            part(_FLOATS, advantage) if more else advantage,
            weight_versions,
            trained,
            None if rewards is None else part(_FLOATS, rewards),
            routes=None if experts is None else routes(*experts),
            segment=segment or 0,
            turns=None if turns is None else part(_IDS, turns),
        )


def _align_size(size_bytes: int) -> int:
    return size_bytes + -size_bytes % _ALIGN_BYTES
