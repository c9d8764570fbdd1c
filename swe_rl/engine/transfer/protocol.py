"""What both ends of a transfer of weights agree on: the way, what travels in which order, what a trainer offers.

Invariants:
- Nothing of torch is needed here: names, types and shapes travel as words and numbers, handles of memory as JSON.
- A bucket is tensors laid out one after another in a buffer. Every tensor is whole, in one bucket, in the order in
  which they were announced; no bucket is larger than the limit, but for one with a single tensor that is.
- Offsets in a buffer are multiples of ALIGN bytes, so that any type can be read there.
"""

import importlib.util
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.plan.sizes import uses_no_gpu, wanted_sync

if TYPE_CHECKING:
    import torch

GLOO, NCCL, IPC = "gloo", "nccl", "swe_rl_ipc"  # names of back ends in vLLM's workers; its own `ipc` is another one
# How vLLM packs tensors for NCCL; sender and receivers must agree.
NCCL_BUFFER_BYTES, NCCL_BUFFERS = 2**30, 2
PACKED = {"packed": True, "packed_buffer_size_bytes": NCCL_BUFFER_BYTES, "packed_num_buffers": NCCL_BUFFERS}
ALIGN = 256
BUCKET_BYTES = 512 * 2**20
BUFFERS = 2  # one is filled while the other is read; bucket k is in buffer k % BUFFERS


class NoVllmBesideTrainerError(UserError):
    """trainer.weight_sync=nccl where only the servers have vLLM."""


def transfer_kind(config: Config) -> str | None:
    """None where weights go another way."""
    way = wanted_sync(config, os.environ)
    if config.engine.kind is EngineKind.embedded or way is WeightSync.disk:
        return None  # not empty, so that whoever inherits it may leave it
    if way is WeightSync.ipc:
        return IPC
    if uses_no_gpu(config.layout):
        return GLOO
    return NCCL if config.trainer.weight_sync is WeightSync.nccl or _has_vllm() else None


def require_wire(config: Config) -> None:
    """Before anything is started. Raises NoVllmBesideTrainerError."""
    if transfer_kind(config) == NCCL and not _has_vllm():
        raise NoVllmBesideTrainerError(
            "trainer.weight_sync=nccl: the trainer's end is vLLM's own, and vLLM is not installed in this environment, "
            "whatever the servers are started with. Install the extra `gpu` here, or take trainer.weight_sync=disk"
        )


def _has_vllm() -> bool:
    """Here, and so where the trainer's ranks are. Nothing is imported to find out."""
    return importlib.util.find_spec("vllm") is not None


@dataclass(frozen=True, slots=True)
class Announced:
    """A tensor that will be sent, `dtype` as torch calls it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Of one transfer, at the sender. `gather_s`: putting tensors together; `wire_s`: all else. `problem`: why not."""

    gather_s: float = 0.0
    wire_s: float = 0.0
    sent_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    tensor: Announced
    offset: int
    size_bytes: int


Bucket = tuple[Placed, ...]


def buckets_of(announced: Iterable[Announced], item_bytes: int, limit_bytes: int = BUCKET_BYTES) -> tuple[Bucket, ...]:
    """`item_bytes`: of the type in which all of them travel."""
    full: list[Bucket] = []
    filling: list[Placed] = []
    end = 0
    for tensor in announced:
        size = prod(tensor.shape) * item_bytes
        start = -(-end // ALIGN) * ALIGN
        if filling and start + size > limit_bytes:
            full.append(tuple(filling))
            filling, start = [], 0
        filling.append(Placed(tensor, start, size))
        end = start + size
    return (*full, tuple(filling)) if filling else tuple(full)


def buffer_bytes(buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """The size of each buffer that is needed: the largest of its own buckets."""
    sizes = [bucket[-1].offset + bucket[-1].size_bytes for bucket in buckets]
    return tuple(max(sizes[number::BUFFERS]) for number in range(min(BUFFERS, len(sizes))))


def tensors_info(tensors: Sequence[Announced]) -> dict[str, object]:
    """What a server is told of tensors that follow, in their order."""
    names, dtypes = [tensor.name for tensor in tensors], [tensor.dtype for tensor in tensors]
    return {"names": names, "dtype_names": dtypes, "shapes": [list(tensor.shape) for tensor in tensors]}


def update_info(bucket: Bucket, number: int) -> dict[str, object]:
    """What a server is told of bucket `number`."""
    offsets = [placed.offset for placed in bucket]
    return {"buffer": number % BUFFERS, "offsets": offsets, **tensors_info([placed.tensor for placed in bucket])}


@dataclass(frozen=True, slots=True)
class Staging:
    """`handles`: of the buffers on each GPU, by its UUID; `problem`: why there are none."""

    buckets: Sequence[Bucket] = ()
    handles: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    problem: str | None = None


class SendsWeights(Protocol):
    """All of it blocks its thread. `twice`: second names of some tensors, with the first ones."""

    def weights(self) -> "Mapping[str, torch.Tensor]":
        """The way through a folder, for a server that was started anew."""
        ...

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        """Host and free port where receivers find the sender; `loopback`: all are on its host."""
        ...

    def open_wire(self, kind: str, host: str, port: int, world: int) -> str | None:
        """Returns when all `world` ends, the sender's included, have met; or what went wrong."""
        ...

    def announce_weights(self, twice: Mapping[str, str]) -> Sequence[Announced]:
        """What `transfer_weights` will send, in its order."""
        ...

    def transfer_weights(self, twice: Mapping[str, str]) -> Sent: ...

    def open_staging(self, twice: Mapping[str, str]) -> Staging:
        """Buffers on every rank's GPU. Here and below for engines on the trainer's own GPUs; raises TrainerError."""
        return Staging(problem="this trainer has no memory that it could share")

    def stage(self, number: int) -> Sent:
        """Bucket `number` is in its buffer of every GPU when this returns; they come in their order."""
        return Sent(problem="there are no buffers")

    def close_staging(self) -> None:
        """The buffers are gone; nobody may have one open. Also where none were made."""
        return  # not empty, so that whoever inherits it may leave it


class WritesFiles(Mapping[str, "torch.Tensor"]):
    """Weights that need not pass through this process."""

    @abstractmethod
    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """Safetensors files, and an index where there are several; `twice`: second names, with the first ones."""
