"""The tensors of a checkpoint by name and rows, whichever kind of trainer wrote it.

Invariants:
- Names are `model.NAME` and `optimizer.NAME`; of tied weights there is one.
- Only the rows that are asked for are read, so that any number of ranks goes on from any other.
- Of a model with an adapter they are the adapter's alone; it goes on upon the weights that it was trained on.
- Whoever fills a trainer has verified the folder before.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.manifest import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    hash_problem,
    is_sharded,
    read_json,
    size_problem,
)
from swe_rl.trainer.checkpoint.shard_file import open_shards
from swe_rl.trainer.lora.adapter import adapter_problem
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.pulse import Beat, no_beat
from swe_rl.trainer.sharded.shard import local_shard, shard_range

MODEL, OPTIMIZER = "model.", "optimizer."


class StoredTensors(Protocol):
    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """[stop - start, ...] of a tensor; of a scalar the whole."""
        ...

    def whole(self, name: str) -> Tensor: ...


class WholeFiles:
    """Of a trainer of one process: a file of the model and one of its optimizer."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        """Open safetensors files by the prefix of their tensors' names."""
        self._files = files

    def names(self) -> list[str]:
        return sorted(f"{prefix}{name}" for prefix, file in self._files.items() for name in file.keys())  # noqa: SIM118

    def shape(self, name: str) -> tuple[int, ...]:
        file, own = self._found(name)
        return tuple(file.get_slice(own).get_shape())

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        file, own = self._found(name)
        if not self.shape(name):
            return self.whole(name)
        rows: Tensor = file.get_slice(own)[start:stop]
        return rows

    def whole(self, name: str) -> Tensor:
        file, own = self._found(name)
        tensor: Tensor = file.get_tensor(own)
        return tensor

    def _found(self, name: str) -> tuple[Any, str]:
        prefix = MODEL if name.startswith(MODEL) else OPTIMIZER
        return self._files[prefix], name.removeprefix(prefix)


@contextmanager
def open_stored(folder: Path) -> Iterator[StoredTensors]:
    """Raises ValueError, OSError and SafetensorError as they come."""
    if is_sharded(folder):
        with open_shards(folder) as reader:
            yield reader
        return
    with ExitStack() as stack:
        names = {MODEL: MODEL_FILE, OPTIMIZER: OPTIMIZER_FILE}
        yield WholeFiles({
            prefix: stack.enter_context(safe_open(str(folder / name), framework="pt"))
            for prefix, name in names.items()
        })  # fmt: skip


def verified(folder: Path, expected_config_hash: str | None = None) -> dict[str, Any]:
    """What `state.json` holds, once every byte of the checkpoint was verified. Raises CorruptCheckpointError."""
    problem = size_problem(folder) or hash_problem(folder)
    if problem:
        raise checkpoint.corrupt(folder, problem)
    state = read_json(folder / STATE_FILE)
    checkpoint.check_state(folder, state, expected_config_hash)
    return state


def restore(trainer: Trainer, folder: Path, state: Mapping[str, Any], beat: Beat = no_beat) -> None:
    """Weights, optimizer and counters of this rank; `state` is what `verified` gave.

    Raises CorruptCheckpointError where they are another model's.
    """
    problem = adapter_problem(state.get("adapter"), trainer.adapter)
    if problem:
        raise checkpoint.corrupt(folder, problem)
    try:
        with open_stored(folder) as stored, torch.no_grad():
            _fill(trainer, stored, state["counters"], beat)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise checkpoint.corrupt(folder, f"a tensor cannot be read ({error})") from error


def _fill(trainer: Trainer, stored: StoredTensors, counters: Mapping[str, Any], beat: Beat) -> None:
    def rows(name: str, start: int, stop: int) -> Tensor:
        beat()
        return stored.rows(name, start, stop)

    names = set(stored.names())
    for name, parameter in trainer.named_parameters().items():
        key = f"{MODEL}{name}"
        if key not in names:
            raise ValueError(f"{name} is missing")
        if stored.shape(key) != tuple(parameter.shape):
            raise ValueError(f"{name} has shape {list(stored.shape(key))} there and {list(parameter.shape)} here")
        names.discard(key)
        local_shard(parameter).copy_(rows(key, *shard_range(parameter)))
    optimizer = {name.removeprefix(OPTIMIZER) for name in names if name.startswith(OPTIMIZER)}
    if names - {f"{OPTIMIZER}{name}" for name in optimizer}:
        raise ValueError(f"{sorted(names)[0]} is not in this model")
    trainer.load_shards(optimizer, lambda name, a, b: rows(f"{OPTIMIZER}{name}", a, b), counters)
