"""The module is the trainer's end of a weight transfer: rank 0 sends tensors, or each rank fills shared memory.

Invariants:
- Every rank takes part in putting the tensors together, also when sending them fails: none is left in a collective.
- What was announced is what is sent: same names, order, types and shapes.
- Over NCCL it is vLLM's own protocol (`vllm.distributed.weight_transfer`); a send that does not end in time ends the
  rank, because nothing else takes a rank out of a collective that others have left.
- A wire that failed is closed; the next one is opened anew, with whoever is there then.
- Every rank takes part in putting a bucket together, and is done with it when `stage` returns: between two buckets none
  of them is in a collective.
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
from swe_rl.engine.transfer.sent_weights import (
    BUCKET_BYTES,
    BUFFERS,
    NCCL_BUFFER_BYTES,
    NCCL_BUFFERS,
    Announced,
    Bucket,
    SentWeights,
    Staging,
    buckets_of,
    buffer_bytes,
)
from swe_rl.facts.weight_sync import NCCL
from swe_rl.host.addresses import LOOPBACK, free_port, own_address
from swe_rl.model.experts import StoredLayout, expert_parts, hub_shapes
from swe_rl.trainer.send.hand_over import Named, TensorStream, gather_tensors
from swe_rl.trainer.trainer import TrainerError

# A transfer of the largest models takes a few seconds a GPU; an engine that takes nothing for two minutes hangs.
TIMEOUT_S = 120.0


class Wire(Protocol):
    def broadcast(self, tensors: Iterator[Named]) -> None:
        """Takes each of them, in their order. Raises RuntimeError."""

    def close(self) -> None: ...


class WireEnd:
    """The end of one rank. Only rank 0 has a wire."""

    def __init__(
        self, rank: int, dtype: torch.dtype, timeout_s: float = TIMEOUT_S, layout: StoredLayout = expert_parts
    ) -> None:
        """Keeps the rank. Weights travel in `dtype`, under the names that `layout` gives them."""
        self._rank = rank
        self._dtype = dtype
        self._layout = layout
        self._timeout_s = timeout_s
        self._wire: Wire | None = None

    def address(self, loopback: bool) -> tuple[str, int]:
        """Returns where others find rank 0, and a port that is free there. With `loopback` all of them are on this
        host.
        """
        if loopback:
            host = LOOPBACK
        else:
            host = own_address()
        return host, free_port(host)

    def open(self, kind: str, host: str, port: int, world: int) -> str | None:
        """Returns None once all `world` are there, or what went wrong."""
        self.close()
        if self._rank != 0:
            return None
        try:
            self._wire = (NcclWire if kind == NCCL else GlooWire)(host, port, world, self._timeout_s)
        except (RuntimeError, ValueError, ImportError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def announce(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> list[Announced]:
        return announce_tensors(weights, twice, self._dtype, self._layout)

    def send(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> SentWeights:
        """Sends the weights. It is called on every rank at the same time."""
        stream = TensorStream(
            gather_tensors(weights, self._dtype, self._layout), {first: name for name, first in twice.items()}
        )
        started_s = time.perf_counter()
        problem = None
        try:
            if self._wire is not None:
                self._wire.broadcast(stream)
            elif self._rank == 0:
                raise RuntimeError("the wire to the engines is not open")
        except RuntimeError as error:
            problem = f"{type(error).__name__}: {error}"
            self.close()
        # The other ranks, and rank 0 after a failure, still take part in the collectives that put the tensors together.
        # Where all were sent, nothing is left of the stream.
        for _ in stream:
            pass
        wall_s = time.perf_counter() - started_s
        return SentWeights(stream.gather_s, wall_s - stream.gather_s, stream.bytes, problem)

    def close(self) -> None:
        wire = self._wire
        self._wire = None
        if wire is not None:
            wire.close()


def announce_tensors(
    weights: Mapping[str, Tensor], twice: Mapping[str, str], dtype: torch.dtype, layout: StoredLayout = expert_parts
) -> list[Announced]:
    """Returns the tensors that will be sent. `twice` has second names, with the first ones: both are sent."""
    second = {first: name for name, first in twice.items()}
    tensors = []
    for weight, tensor in weights.items():
        for name, shape in hub_shapes(weight, tensor.shape, layout):
            for each in (name, second[name]) if name in second else (name,):
                tensors.append(Announced(each, str(dtype).removeprefix("torch."), shape))
    return tensors


class GlooWire:
    """Sends between processes without GPUs, with `engine/transfer/vllm_worker` at the other end."""

    def __init__(self, host: str, port: int, world: int, timeout_s: float) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        limit = timedelta(seconds=timeout_s)
        if host == LOOPBACK and sys.platform == "linux":
            # A host without a network may not know its own name.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store: Any = TCPStore(host, port, world, True, limit, wait_for_workers=False)
        self._group: Any = ProcessGroupGloo(PrefixStore("weights", self._store), 0, world, limit)
        self._world = world

    def broadcast(self, tensors: Iterator[Named]) -> None:
        """Sends each tensor to one receiver after another. One whose connection closed gets no more, the others get
        all.

        One that is there and takes nothing holds up all of them until the timeout, which closes every connection.
        """
        there = list(range(1, self._world))
        first = None
        for _, tensor in tensors:
            weight = tensor.cpu().contiguous()
            for rank in tuple(there):
                try:
                    self._group.send([weight], rank, 0).wait()
                except RuntimeError as error:
                    print(f"receiver {rank} gets no more weights: {error}", file=sys.stderr, flush=True)
                    there.remove(rank)
                    # What the others meet after a timeout says less than the first error.
                    first = first or error
                    if not there:
                        raise first from None

    def close(self) -> None:
        self._group = self._store = None


class NcclWire:
    """Sends between GPUs. vLLM must be installed where the trainer runs."""

    def __init__(self, host: str, port: int, world: int, timeout_s: float) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self._timeout_s = timeout_s
        self._group: Any = trainer_init({"master_address": host, "master_port": port, "world_size": world})

    def broadcast(self, tensors: Iterator[Named]) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        # Nothing else takes this rank out of a collective that the engines have left, so a timer ends the process.
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
        group = self._group
        self._group = None
        # vLLM has this method since 0.28.
        destroy = getattr(group, "destroy", None)
        if destroy is not None:
            destroy()


def on_device(tensors: Iterator[Named], device: torch.device) -> Iterator[Named]:
    """Yields the tensors on a GPU: NCCL takes a GPU's memory only, but offloaded weights are in the host's."""
    for name, tensor in tensors:
        yield name, tensor.to(device)


def _give_up(timeout_s: float) -> None:
    sys.stderr.write(f"RuntimeError: engines did not take the weights over NCCL within {timeout_s:.0f} s\n")
    sys.stderr.flush()
    os._exit(1)


class StagingEnd:
    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        bucket_bytes: int = BUCKET_BYTES,
        layout: StoredLayout = expert_parts,
    ) -> None:
        """Keeps the device. Weights travel in `dtype`, under the names that `layout` gives them."""
        self._dtype = dtype
        self._layout = layout
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._buckets: tuple[Bucket, ...] = ()
        self._shared: list[tuple[Tensor, Handle]] = []
        self._stream: TensorStream | None = None

    def open(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> Staging:
        """Opens the buffers of this rank's GPU, by its `ipc_handle.device_key`.

        There is no collective but what reading `weights` is: a rank that has no memory says so, and no other waits for
        it.
        """
        self.close()
        tensors = announce_tensors(weights, twice, self._dtype, self._layout)
        self._buckets = buckets_of(tensors, self._dtype.itemsize, self._bucket_bytes)
        self._stream = TensorStream(
            gather_tensors(weights, self._dtype, self._layout), {first: name for name, first in twice.items()}
        )
        key = device_key(self._device)
        try:
            for size in buffer_bytes(self._buckets):
                self._shared.append(make_shared(size, self._device))
        except (RuntimeError, OSError) as error:
            self.close()
            return Staging(handles={key: ()}, problem=f"{type(error).__name__}: {error}")
        return Staging(self._buckets, {key: tuple(handle for _, handle in self._shared)})

    def stage(self, number: int) -> SentWeights:
        """Fills the buffer of one bucket. It is called on every rank at the same time, number after number.

        Raises TrainerError, RuntimeError.
        """
        if self._stream is None:
            raise TrainerError(f"Bucket {number} of the weights was asked for, and there are no buffers for it.")
        began_s = time.perf_counter()
        gathered_s = self._stream.gather_s
        bytes_before = self._stream.bytes
        buffer, _ = self._shared[number % BUFFERS]
        for place in self._buckets[number]:
            name, tensor = next(self._stream)
            if name != place.tensor.name:
                raise TrainerError(f"`{name}` was put together where `{place.tensor.name}` was announced.")
            room = buffer[place.offset : place.offset + place.size_bytes]
            room.view(self._dtype).view(place.tensor.shape).copy_(tensor)
        if self._device.type == "cuda":
            # The copies only run on the GPU's queue so far, and the engines read the buffer as soon as this returns.
            torch.cuda.synchronize(self._device)
        gather_s = self._stream.gather_s - gathered_s
        wall_s = time.perf_counter() - began_s
        return SentWeights(gather_s, wall_s - gather_s, self._stream.bytes - bytes_before)

    def close(self) -> None:
        """Frees the buffers. It may be called at any time; nobody may have a buffer open."""
        self._stream = None
        self._buckets = ()
        shared = self._shared
        self._shared = []
        for _, handle in shared:
            forget_shared(handle)
        shared.clear()
        if self._device.type == "cuda":
            # Without this a file of torch's stays in /dev/shm when the rank ends.
            torch.cuda.ipc_collect()
