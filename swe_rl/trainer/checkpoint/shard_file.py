"""Tensors of which every rank has some rows: the files, and reading any rows back.

Invariants:
- One safetensors file a rank, and one index: shape, dtype and pieces (file, first row, last row + 1) of each tensor.
- The pieces of a tensor cover its rows exactly once; an index that does not say so is refused.
- Reading never depends on how many ranks wrote; only the rows that are asked for are read.
- Scalars (and tensors that are the same on every rank) are one piece, written by rank 0.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swe_rl.trainer.checkpoint.manifest import INDEX_FILE, read_json


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` .. `stop` of a tensor of `shape`; a scalar has none and is whole."""

    shape: tuple[int, ...]
    start: int
    stop: int
    values: Tensor


def shard_name(rank: int, world: int) -> str:
    return f"shard_{rank:05d}_of_{world:05d}.safetensors"


def index_entries(pieces: Mapping[str, Piece], file: str) -> dict[str, Any]:
    """What one rank adds to the index: JSON data."""
    return {
        name: {
            "shape": list(piece.shape),
            "dtype": str(piece.values.dtype).removeprefix("torch."),
            "pieces": [[file, piece.start, piece.stop]],
        }
        for name, piece in pieces.items()
    }


def joined_index(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """The index of all ranks. Raises ValueError where pieces are missing or overlap."""
    joined: dict[str, Any] = {}
    for entries in by_rank:
        for name, entry in entries.items():
            known = joined.setdefault(name, {"shape": entry["shape"], "dtype": entry["dtype"], "pieces": []})
            known["pieces"] += entry["pieces"]
    for name, entry in joined.items():
        entry["pieces"].sort(key=lambda piece: (piece[1], piece[2]))
        _check(name, entry)
    return joined


class ShardReader:
    """The tensors of one folder; use it in `open_shards`."""

    def __init__(self, index: Mapping[str, Any], files: Mapping[str, Any]) -> None:
        self._index, self._files = index, files

    def names(self) -> list[str]:
        return sorted(self._index)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._index[name]["shape"])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """[stop - start, ...] of a tensor; of a scalar the whole."""
        entry = self._index[name]
        if not entry["shape"]:
            whole: Tensor = self._files[entry["pieces"][0][0]].get_tensor(name)
            return whole
        parts = [
            self._files[file].get_slice(name)[max(start, first) - first : min(stop, last) - first]
            for file, first, last in entry["pieces"]
            if first < stop and last > start
        ]
        if not parts:
            return torch.empty(0, *entry["shape"][1:], dtype=getattr(torch, entry["dtype"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def whole(self, name: str) -> Tensor:
        shape = self.shape(name)
        return self.rows(name, 0, shape[0] if shape else 0)


@contextmanager
def open_shards(folder: Path) -> Iterator[ShardReader]:
    """Raises ValueError for an index that does not cover its tensors, OSError and SafetensorError as they come."""
    from safetensors import safe_open

    index = read_json(folder / INDEX_FILE)
    for name, entry in index.items():
        _check(name, entry)
    names = sorted({file for entry in index.values() for file, _, _ in entry["pieces"]})
    with ExitStack() as stack:
        yield ShardReader(
            index,
            {file: stack.enter_context(safe_open(str(folder / Path(file).name), framework="pt")) for file in names},
        )


def _check(name: str, entry: Mapping[str, Any]) -> None:
    rows = entry["shape"][0] if entry["shape"] else 0
    at = 0
    for _, start, stop in entry["pieces"]:
        if start != at or stop < start:
            raise ValueError(f"rows {at} to {start} of {name} are missing or twice there")
        at = stop
    if at != rows or not entry["pieces"]:
        raise ValueError(f"{name} has {at} of {rows} rows")
