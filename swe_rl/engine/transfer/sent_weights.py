"""Says what both ends of a transfer of weights agree on: what travels in which order, and what a trainer offers.

Invariants:
- Nothing of torch is needed here: names, types and shapes travel as words and numbers, handles of memory as JSON.
- A bucket is tensors laid out one after another in a buffer. Every tensor is whole, in one bucket, in the order in
  which they were announced; no bucket is larger than the limit, but for one with a single tensor that is.
- Offsets in a buffer are multiples of ALIGN bytes, so that any type can be read there.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

# vLLM packs tensors for NCCL so; sender and receivers must agree.
NCCL_BUFFER_BYTES = 2**30
NCCL_BUFFERS = 2
PACKED = {"packed": True, "packed_buffer_size_bytes": NCCL_BUFFER_BYTES, "packed_num_buffers": NCCL_BUFFERS}
ALIGN = 256
# A bucket of 512 MiB takes a fraction of a second, and two of them fit beside a model that sleeps.
BUCKET_BYTES = 512 * 2**20
# One is filled while the other is read; bucket k is in buffer k % BUFFERS.
BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Announced:
    """A tensor that will be sent, `dtype` as torch calls it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SentWeights:
    """The sender's account of a transfer. `gather_s` went into putting tensors together, `wire_s` into all else.

    `problem` says why nothing was sent.
    """

    gather_s: float = 0.0
    wire_s: float = 0.0
    sent_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    tensor: Announced
    offset: int
    size_bytes: int


Bucket = tuple[PlacedTensor, ...]


def buckets_of(announced: Iterable[Announced], item_bytes: int, limit_bytes: int = BUCKET_BYTES) -> tuple[Bucket, ...]:
    """Returns the buckets. `item_bytes` is that of the type in which all tensors travel."""
    full: list[Bucket] = []
    filling: list[PlacedTensor] = []
    end = 0
    for tensor in announced:
        size = prod(tensor.shape) * item_bytes
        start = -(-end // ALIGN) * ALIGN
        if filling and start + size > limit_bytes:
            full.append(tuple(filling))
            filling = []
            start = 0
        filling.append(PlacedTensor(tensor, start, size))
        end = start + size
    if filling:
        return (*full, tuple(filling))
    return tuple(full)


def buffer_bytes(buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """Returns the size of each buffer that is needed: the largest of its own buckets."""
    sizes = [bucket[-1].offset + bucket[-1].size_bytes for bucket in buckets]
    return tuple(max(sizes[number::BUFFERS]) for number in range(min(BUFFERS, len(sizes))))


def tensors_info(tensors: Sequence[Announced]) -> dict[str, object]:
    """Returns what a server is told of tensors that follow, in their order."""
    names = [tensor.name for tensor in tensors]
    dtypes = [tensor.dtype for tensor in tensors]
    return {"names": names, "dtype_names": dtypes, "shapes": [list(tensor.shape) for tensor in tensors]}


def update_info(bucket: Bucket, number: int) -> dict[str, object]:
    """Returns what a server is told of bucket `number`."""
    offsets = [placed.offset for placed in bucket]
    return {"buffer": number % BUFFERS, "offsets": offsets, **tensors_info([placed.tensor for placed in bucket])}


@dataclass(frozen=True, slots=True)
class Staging:
    """The shared buffers. `handles` has those on each GPU, by its UUID; `problem` says why there are none."""

    buckets: Sequence[Bucket] = ()
    handles: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    problem: str | None = None


class SendsWeights(Protocol):
    """A sender of weights. All of it blocks its thread. `twice` has second names of some tensors, with
    the first ones.
    """

    def weights(self) -> "Mapping[str, torch.Tensor]":
        """Returns the weights for the way through a folder, for a server that was started anew."""
        ...

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        """Returns host and free port where receivers find the sender. With `loopback` all are on its host."""
        ...

    def open_wire(self, kind: str, host: str, port: int, world: int) -> str | None:
        """Returns None when all `world` ends, the sender's included, have met; or what went wrong."""
        ...

    def announce_weights(self, twice: Mapping[str, str]) -> Sequence[Announced]:
        """Returns what `transfer_weights` will send, in its order."""
        ...

    def transfer_weights(self, twice: Mapping[str, str]) -> SentWeights: ...

    def open_staging(self, twice: Mapping[str, str]) -> Staging:
        """Opens buffers on every rank's GPU, for engines on the trainer's own GPUs. Raises TrainerError."""
        return Staging(problem="this trainer has no memory that it could share")

    def stage(self, number: int) -> SentWeights:
        """Fills the buffer of bucket `number` on every GPU; buckets come in their order."""
        return SentWeights(problem="there are no buffers")

    def close_staging(self) -> None:
        """Removes the buffers; nobody may have one open. It may be called where none were made."""
        # The body is not empty, so that whoever inherits it may leave it.
        return


class WritesFiles(Mapping[str, "torch.Tensor"]):
    """Weights that need not pass through this process."""

    @abstractmethod
    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """Writes safetensors files, and an index where there are several. `twice` has second names, with the first
        ones.
        """
