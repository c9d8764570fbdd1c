"""Stores a checkpoint's tensors by name and rows: each rank writes its part, and any rows can be read.

Invariants:
- There is one safetensors file a rank, and one index: shape, dtype and pieces (file, first row, last row + 1) of each
  tensor. A process that trains alone writes as the one rank of one.
- The pieces of a tensor cover its rows exactly once, also of several replicas; an index that does not say so is
  refused.
- Scalars (and tensors that are the same on every rank) are one piece, written by rank 0.
- Names are `model.NAME` and `optimizer.NAME`, with `critic.` before them those of a critic; of tied weights there is
  one.
- Only the rows that are asked for are read, so that any number of ranks goes on from any other.
- A model with an adapter has the adapter's tensors alone; it goes on upon the weights that it was trained on.
- Whoever fills a trainer has verified the folder before.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.folder import INDEX_FILE, MODEL_FILE, OPTIMIZER_FILE, read_json
from swe_rl.trainer.checkpoint.tensor_file import DTYPES, TYPES
from swe_rl.trainer.critic import PREFIX as CRITIC
from swe_rl.trainer.lora import adapter_problem
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.pulse import Beat, no_beat
from swe_rl.trainer.sharded.mesh import Mesh, is_sharded, local_shard, shard_range

MODEL = "model."
OPTIMIZER = "optimizer."
# They have whole tensors, whose names lack the prefix.
_OLD_FILES = {MODEL_FILE: MODEL, OPTIMIZER_FILE: OPTIMIZER}


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows from `start` to before `stop` of a tensor of `shape`. A scalar has no rows and is whole."""

    shape: tuple[int, ...]
    start: int
    stop: int
    values: Tensor


def pieces_of(trainer: Trainer, tensors: Mapping[str, Tensor], mesh: Mesh) -> dict[str, Piece]:
    """Returns what this rank writes of the weights and of the optimizer's `tensors`: live tensors, not copies."""
    named = {f"{MODEL}{name}": tensor for name, tensor in trainer.named_parameters().items()}
    named |= {f"{OPTIMIZER}{name}": tensor for name, tensor in tensors.items()}
    if trainer.critic:
        named |= trainer.critic.tensors()
    pieces = {}
    for name, tensor in named.items():
        if is_sharded(tensor):
            pieces[name] = _own_rows(tensor, mesh)
        elif mesh.rank == 0:
            rows = 0
            if tensor.ndim:
                rows = tensor.shape[0]
            pieces[name] = Piece(tuple(tensor.shape), 0, rows, tensor.detach())
    return pieces


def _own_rows(tensor: Tensor, mesh: Mesh) -> Piece:
    """Returns the part that this rank writes: replicas have the same rows, so each writes its share of them."""
    start, stop = shard_range(tensor)
    first, last = ((stop - start) * number // mesh.replicas for number in (mesh.replica, mesh.replica + 1))
    return Piece(tuple(tensor.shape), start + first, start + last, local_shard(tensor).detach()[first:last])


def shard_name(rank: int, world: int) -> str:
    return f"shard_{rank:05d}_of_{world:05d}.safetensors"


def index_entries(pieces: Mapping[str, Piece], file: str) -> dict[str, Any]:
    """Returns what one rank adds to the index, as JSON data."""
    return {
        name: {
            "shape": list(piece.shape),
            "dtype": TYPES[DTYPES[piece.values.dtype]],
            "pieces": [[file, piece.start, piece.stop]],
        }
        for name, piece in pieces.items()
    }


def joined_index(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the index of all ranks. Raises ValueError where pieces are missing or overlap."""
    joined: dict[str, Any] = {}
    for entries in by_rank:
        for name, entry in entries.items():
            known = joined.setdefault(name, {"shape": entry["shape"], "dtype": entry["dtype"], "pieces": []})
            known["pieces"] += entry["pieces"]
    for name, entry in joined.items():
        # Ranks may have written in any order; the check below walks the pieces row by row.
        entry["pieces"].sort(key=lambda piece: (piece[1], piece[2]))
        _check_entry(name, entry)
    return joined


def _check_entry(name: str, entry: Mapping[str, Any]) -> None:
    rows = 0
    if entry["shape"]:
        rows = entry["shape"][0]
    at = 0
    for _, start, stop in entry["pieces"]:
        if start != at or stop < start:
            raise ValueError(f"rows {at} to {start} of {name} are missing or twice there")
        at = stop
    if at != rows or not entry["pieces"]:
        raise ValueError(f"{name} has {at} of {rows} rows")


class StoredTensors:
    """Reads the tensors of one folder. Use it within `open_stored`."""

    def __init__(self, index: Mapping[str, Any], files: Mapping[str, Any]) -> None:
        self._index = index
        self._files = files

    def names(self) -> list[str]:
        return sorted(self._index)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._index[name]["shape"])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Returns the rows of a tensor as [stop - start, ...]; a scalar is returned whole."""
        entry = self._index[name]
        if not entry["shape"]:
            file = entry["pieces"][0][0]
            scalar: Tensor = self._files[file].get_tensor(_name_in(file, name))
            return scalar
        parts: list[Tensor] = [
            self._files[file].get_slice(_name_in(file, name))[max(start, first) - first : min(stop, last) - first]
            for file, first, last in entry["pieces"]
            if first < stop and last > start
        ]
        # A rank without rows still needs a tensor of the right type and width.
        if not parts:
            return torch.empty(0, *entry["shape"][1:], dtype=getattr(torch, entry["dtype"]))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts)

    def whole(self, name: str) -> Tensor:
        shape = self.shape(name)
        return self.rows(name, 0, shape[0] if shape else 0)


@contextmanager
def open_stored(folder: Path) -> Iterator[StoredTensors]:
    """Yields the tensors of a folder. Raises ValueError for an index that does not cover its tensors.

    Raises OSError and SafetensorError as they come.
    """
    index: dict[str, Any] = {}
    names = set(_OLD_FILES)
    if (folder / INDEX_FILE).is_file():
        index = read_json(folder / INDEX_FILE)
        names = {file for entry in index.values() for file, _, _ in entry["pieces"]}
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(safe_open(str(folder / Path(name).name), framework="pt"))
            for name in sorted(names)
        }
        index = index or _old_index(files)
        for name, entry in index.items():
            _check_entry(name, entry)
        yield StoredTensors(index, files)


def _old_index(files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the index that the one rank of one would have written for a checkpoint of version 0.4."""
    index = {}
    for file, prefix in _OLD_FILES.items():
        for name in files[file].keys():  # noqa: SIM118 - not a dict
            tensor = files[file].get_slice(name)
            shape = tensor.get_shape()
            dtype = TYPES[tensor.get_dtype()]
            rows = 0
            if shape:
                rows = shape[0]
            index[prefix + name] = {"shape": shape, "dtype": dtype, "pieces": [[file, 0, rows]]}
    return index


def _name_in(file: str, name: str) -> str:
    return name.removeprefix(_OLD_FILES.get(file, ""))


def restore_trainer(trainer: Trainer, folder: Path, state: Mapping[str, Any], beat: Beat = no_beat) -> None:
    """Puts weights, optimizer and counters of this rank into `trainer`. `state` is what `state.json` holds.

    Raises CorruptCheckpointError where they are another model's.
    """
    problem = adapter_problem(state.get("adapter"), trainer.adapter)
    if problem:
        raise checkpoint.corrupt_error(folder, problem)
    try:
        with open_stored(folder) as stored, torch.no_grad():
            _fill_trainer(trainer, stored, state["counters"], beat)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise checkpoint.corrupt_error(folder, f"a tensor cannot be read ({error})") from error


def _fill_trainer(trainer: Trainer, stored: StoredTensors, counters: Mapping[str, Any], beat: Beat) -> None:
    def rows(name: str, start: int, stop: int) -> Tensor:
        beat()
        return stored.rows(name, start, stop)

    names = set(stored.names())
    parameters = {f"{MODEL}{name}": parameter for name, parameter in trainer.named_parameters().items()}
    for key, parameter in (parameters | (trainer.critic.parameters() if trainer.critic else {})).items():
        name = key.removeprefix(MODEL)
        if key not in names:
            raise ValueError(f"{name} is missing")
        if stored.shape(key) != tuple(parameter.shape):
            raise ValueError(f"{name} has shape {list(stored.shape(key))} there and {list(parameter.shape)} here")
        names.discard(key)
        local_shard(parameter).copy_(rows(key, *shard_range(parameter)))
    if trainer.critic:
        of_critic = {name for name in names if name.startswith(CRITIC)}
        names -= of_critic
        trainer.critic.load_optimizer(of_critic, rows)
    optimizer = {name.removeprefix(OPTIMIZER) for name in names if name.startswith(OPTIMIZER)}
    if names - {f"{OPTIMIZER}{name}" for name in optimizer}:
        raise ValueError(f"{sorted(names)[0]} is not in this model")
    trainer.load_shards(optimizer, lambda name, a, b: rows(f"{OPTIMIZER}{name}", a, b), counters)
