"""A rank's end of a transfer through shared memory: whole tensors into buffers that a server on its GPU has open.

Invariants:
- Every rank takes part in putting a bucket together, and is done with it when `stage` returns: between two buckets
  none of them is in a collective.
- What was announced in the buckets is what is staged: same order, types and shapes.
- A rank holds two buffers, one whole tensor and its shards at most.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.engine.transfer.ipc_handle import Handle, device_key, forget_shared, make_shared
from swe_rl.engine.transfer.protocol import BUCKET_BYTES, BUFFERS, Bucket, Sent, buckets_of, buffer_bytes
from swe_rl.trainer.errors import TrainerError
from swe_rl.trainer.send.wire import announced
from swe_rl.trainer.sharded.gather import Stream, gathered


@dataclass(frozen=True, slots=True)
class Opened:
    """What one rank has to say of its buffers. `device`: `ipc_handle.device_key`."""

    device: str
    buckets: tuple[Bucket, ...] = ()
    handles: tuple[Handle, ...] = ()
    problem: str | None = None


class StagingEnd:
    def __init__(self, dtype: torch.dtype, device: torch.device, bucket_bytes: int = BUCKET_BYTES) -> None:
        """`dtype`: in which weights travel."""
        self._dtype, self._device, self._bucket_bytes = dtype, device, bucket_bytes
        self._buckets: tuple[Bucket, ...] = ()
        self._shared: list[tuple[Tensor, Handle]] = []
        self._stream: Stream | None = None

    def open(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> Opened:
        """No collective but what reading `weights` is; a rank that has no memory says so, and no other waits for it."""
        self.close()
        self._buckets = buckets_of(announced(weights, twice, self._dtype), self._dtype.itemsize, self._bucket_bytes)
        self._stream = Stream(gathered(weights, self._dtype), {first: name for name, first in twice.items()})
        key = device_key(self._device)
        try:
            for size in buffer_bytes(self._buckets):
                self._shared.append(make_shared(size, self._device))
        except (RuntimeError, OSError) as error:
            self.close()
            return Opened(key, problem=f"{type(error).__name__}: {error}")
        return Opened(key, self._buckets, tuple(handle for _, handle in self._shared))

    def stage(self, number: int) -> Sent:
        """On every rank at the same time, number after number. Raises TrainerError, RuntimeError."""
        if self._stream is None:
            raise TrainerError(f"Bucket {number} of the weights was asked for, and there are no buffers for it.")
        began_s, gathered_s, bytes_before = time.perf_counter(), self._stream.gather_s, self._stream.bytes
        buffer, _ = self._shared[number % BUFFERS]
        for place in self._buckets[number]:
            name, tensor = next(self._stream)
            if name != place.tensor.name:
                raise TrainerError(f"`{name}` was put together where `{place.tensor.name}` was announced.")
            room = buffer[place.offset : place.offset + place.size_bytes]
            room.view(self._dtype).view(place.tensor.shape).copy_(tensor)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        gather_s = self._stream.gather_s - gathered_s
        wall_s = time.perf_counter() - began_s
        return Sent(gather_s, wall_s - gather_s, self._stream.bytes - bytes_before)

    def close(self) -> None:
        """May be called at any time; nobody may have a buffer open."""
        self._stream, self._buckets = None, ()
        shared, self._shared = self._shared, []
        for _, handle in shared:
            forget_shared(handle)
        shared.clear()
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # else a file of torch's stays in /dev/shm when the rank ends
