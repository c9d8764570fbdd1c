"""The trainer's end of a weight transfer: rank 0 sends tensor after tensor, or each rank fills shared memory.

Invariants:
- Every rank takes part in putting the tensors together, also when sending them fails: none is left in a collective.
- What was announced is what is sent: same names, order, types and shapes.
- Over NCCL it is vLLM's own protocol (`vllm.distributed.weight_transfer`); a send that does not end in time ends the
  rank, because nothing else takes a rank out of a collective that others have left.
- A wire that failed is closed; the next one is opened anew, with whoever is there then.
- Every rank takes part in putting a bucket together, and is done with it when `stage` returns: between two buckets
  none of them is in a collective.
- A rank holds two buffers, one whole tensor and its shards at most.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from swe_rl.engine.transfer.ipc_handle import Handle, device_key, forget_shared, make_shared
from swe_rl.engine.transfer.protocol import (
    BUCKET_BYTES,
    BUFFERS,
    NCCL_BUFFER_BYTES,
    NCCL_BUFFERS,
    Announced,
    Bucket,
    Sent,
    Staging,
    buckets_of,
    buffer_bytes,
)
from swe_rl.host.addresses import LOOPBACK, free_port, own_address
from swe_rl.model.experts import hub_shapes
from swe_rl.plan.weight_sync import NCCL
from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.send.hand_over import Named, Stream, gathered

TIMEOUT_S = 120.0


class Wire(Protocol):
    def broadcast(self, tensors: Iterator[Named]) -> None:
        """Takes each of them, in their order. Raises RuntimeError."""

    def close(self) -> None: ...


class WireEnd:
    """One rank's end; only rank 0 has a wire."""

    def __init__(self, rank: int, dtype: torch.dtype, timeout_s: float = TIMEOUT_S) -> None:
        """`dtype`: in which weights travel."""
        self._rank, self._dtype, self._timeout_s = rank, dtype, timeout_s
        self._wire: Wire | None = None

    def address(self, loopback: bool) -> tuple[str, int]:
        """Where others find rank 0, and a port that is free there. `loopback`: all of them are on this host."""
        host = LOOPBACK if loopback else own_address()
        return host, free_port(host)

    def open(self, kind: str, host: str, port: int, world: int) -> str | None:
        """Returns once all `world` are there; or what went wrong."""
        self.close()
        if self._rank != 0:
            return None
        try:
            self._wire = (NcclWire if kind == NCCL else GlooWire)(host, port, world, self._timeout_s)
        except (RuntimeError, ValueError, ImportError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def announce(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> list[Announced]:
        return announced(weights, twice, self._dtype)

    def send(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> Sent:
        """On every rank at the same time."""
        stream = Stream(gathered(weights, self._dtype), {first: name for name, first in twice.items()})
        started_s, problem = time.perf_counter(), None
        try:
            if self._wire is not None:
                self._wire.broadcast(stream)
            elif self._rank == 0:
                raise RuntimeError("the wire to the engines is not open")
        except RuntimeError as error:
            problem = f"{type(error).__name__}: {error}"
            self.close()
        for _ in stream:  # nothing is left of it where it was sent
            pass
        wall_s = time.perf_counter() - started_s
        return Sent(stream.gather_s, wall_s - stream.gather_s, stream.bytes, problem)

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def announced(weights: Mapping[str, Tensor], twice: Mapping[str, str], dtype: torch.dtype) -> list[Announced]:
    """`twice`: second names of some tensors, with their first ones: they are sent once more under those."""
    second = {first: name for name, first in twice.items()}
    tensors = []
    for weight, tensor in weights.items():
        for name, shape in hub_shapes(weight, tensor.shape):
            for each in (name, second[name]) if name in second else (name,):
                tensors.append(Announced(each, str(dtype).removeprefix("torch."), shape))
    return tensors


class GlooWire:
    """Between processes without GPUs, with `engine/transfer/vllm_worker` at the other end."""

    def __init__(self, host: str, port: int, world: int, timeout_s: float) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        limit = timedelta(seconds=timeout_s)
        if host == LOOPBACK and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host without a network may not know its own name
        self._store: Any = TCPStore(host, port, world, True, limit, wait_for_workers=False)
        self._group: Any = ProcessGroupGloo(PrefixStore("weights", self._store), 0, world, limit)
        self._world = world

    def broadcast(self, tensors: Iterator[Named]) -> None:
        """Each tensor to one receiver after another. One whose connection closed gets no more, and the others get all.

        One that is there and takes nothing holds up all of them until the timeout, which closes every connection.
        """
        there, first = list(range(1, self._world)), None
        for _, tensor in tensors:
            weight = tensor.cpu().contiguous()
            for rank in tuple(there):
                try:
                    self._group.send([weight], rank, 0).wait()
                except RuntimeError as error:
                    print(f"receiver {rank} gets no more weights: {error}", file=sys.stderr, flush=True)
                    there.remove(rank)
                    first = first or error  # what the others meet after a timeout says less
                    if not there:
                        raise first from None

    def close(self) -> None:
        self._group = self._store = None


class NcclWire:
    """Between GPUs. vLLM must be installed where the trainer runs."""

    def __init__(self, host: str, port: int, world: int, timeout_s: float) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self._timeout_s = timeout_s
        self._group: Any = trainer_init({"master_address": host, "master_port": port, "world_size": world})

    def broadcast(self, tensors: Iterator[Named]) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        watch = threading.Timer(self._timeout_s, _give_up, (self._timeout_s,))
        watch.daemon = True
        watch.start()
        try:
            packed_nccl_broadcast_producer(
                iterator=on_device(tensors, torch.device("cuda", torch.cuda.current_device())),
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=NCCL_BUFFER_BYTES,
                num_buffers=NCCL_BUFFERS,
            )
            torch.cuda.synchronize()
        finally:
            watch.cancel()

    def close(self) -> None:
        group, self._group = self._group, None
        destroy = getattr(group, "destroy", None)  # since vLLM 0.28
        if destroy is not None:
            destroy()


def on_device(tensors: Iterator[Named], device: torch.device) -> Iterator[Named]:
    """NCCL takes a GPU's memory only, and with trainer.offload_optimizer the weights are in the host's."""
    for name, tensor in tensors:
        yield name, tensor.to(device)


def _give_up(timeout_s: float) -> None:
    sys.stderr.write(f"RuntimeError: engines did not take the weights over NCCL within {timeout_s:.0f} s\n")
    sys.stderr.flush()
    os._exit(1)


class StagingEnd:
    def __init__(self, dtype: torch.dtype, device: torch.device, bucket_bytes: int = BUCKET_BYTES) -> None:
        """`dtype`: in which weights travel."""
        self._dtype, self._device, self._bucket_bytes = dtype, device, bucket_bytes
        self._buckets: tuple[Bucket, ...] = ()
        self._shared: list[tuple[Tensor, Handle]] = []
        self._stream: Stream | None = None

    def open(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> Staging:
        """Of this rank's GPU, by its `ipc_handle.device_key`. No collective but what reading `weights` is.

        A rank that has no memory says so, and no other waits for it.
        """
        self.close()
        self._buckets = buckets_of(announced(weights, twice, self._dtype), self._dtype.itemsize, self._bucket_bytes)
        self._stream = Stream(gathered(weights, self._dtype), {first: name for name, first in twice.items()})
        key = device_key(self._device)
        try:
            for size in buffer_bytes(self._buckets):
                self._shared.append(make_shared(size, self._device))
        except (RuntimeError, OSError) as error:
            self.close()
            return Staging(handles={key: ()}, problem=f"{type(error).__name__}: {error}")
        return Staging(self._buckets, {key: tuple(handle for _, handle in self._shared)})

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
