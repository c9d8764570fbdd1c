"""Brings the policy's weights from the ranks to the engines: through a pipe to the driver, or in a folder.

Invariants:
- Every rank takes part to the end, in the same order, because each tensor is put together by a collective.
- Weights travel in the type that the ranks compute in, which is the engines' as well: what they sample with is what is
  trained. Shards are rounded to it before they travel, which halves the bytes. An adapter alone is small, and goes as
  it is.
- Tied weights come once, under the name of the embedding; experts come one by one, under the hub's names.
- No rank holds more than one bucket (pipe) or its own file's tensors (folder) beside its shards, on the host.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swe_rl.model.experts import StoredLayout, expert_parts, hub_shapes, hub_tensors
from swe_rl.trainer.checkpoint.tensor_file import INDEX_FILE, index_content, part_name, write_tensors
from swe_rl.trainer.sharded.mesh import Mesh, gather_whole

Named = tuple[str, Tensor]

# A bucket of 64 MiB makes one message of many small tensors, and bounds what rank 0 holds in the host's memory.
BUCKET_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a tensor whose bytes follow it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def gather_tensors(
    weights: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16, layout: StoredLayout = expert_parts
) -> Iterator[Named]:
    """Yields name and whole tensor, on every rank's own device. `weights` is `Trainer.engine_weights()`."""
    for name, tensor in weights.items():
        yield from hub_tensors(name, gather_whole(tensor.detach().to(dtype)), layout)


class TensorStream(Iterator[Named]):
    """Yields whole tensors as they are put together, some under a second name as well; keeps the time it takes."""

    def __init__(self, tensors: Iterator[Named], second: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._second = second
        self._again: Named | None = None
        self.gather_s = 0.0
        self.bytes = 0

    def __next__(self) -> Named:
        if self._again is not None:
            named = self._again
            self._again = None
            return named
        began_s = time.perf_counter()
        try:
            name, tensor = next(self._tensors)
        finally:
            self.gather_s += time.perf_counter() - began_s
        if name in self._second:
            self._again = (self._second[name], tensor)
        self.bytes += tensor.numel() * tensor.element_size()
        return name, tensor


def exchange_type(mesh: Mesh) -> torch.dtype:
    if mesh.device.type == "cuda":
        return torch.bfloat16
    return torch.float32


def send_weights(
    weights: Mapping[str, Tensor],
    mesh: Mesh,
    pipe: Any,
    dtype: torch.dtype | None = None,
    layout: StoredLayout = expert_parts,
) -> None:
    """Sends ("bucket", headers) from rank 0, and then the bytes of each tensor, until all are through."""
    bucket: list[tuple[Header, Tensor]] = []
    filled = 0
    for name, tensor in gather_tensors(weights, dtype or exchange_type(mesh), layout):
        if mesh.rank != 0:
            continue
        there = tensor.cpu().contiguous()
        size = there.numel() * there.element_size()
        if bucket and filled + size > BUCKET_BYTES:
            _send_bucket(bucket, pipe)
            bucket = []
            filled = 0
        bucket.append((Header(name, str(there.dtype).removeprefix("torch."), tuple(there.shape), size), there))
        filled += size
    if bucket:
        _send_bucket(bucket, pipe)


def _send_bucket(bucket: list[tuple[Header, Tensor]], pipe: Any) -> None:
    pipe.send(("bucket", [header for header, _ in bucket]))
    for header, tensor in bucket:
        if header.size_bytes:
            pipe.send_bytes(tensor.reshape(-1).view(torch.uint8).numpy().data)


def receive_bucket(headers: list[Header], pipe: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of one bucket, on the driver's side."""
    for header in headers:
        content = bytearray(header.size_bytes)
        if header.size_bytes:
            pipe.recv_bytes_into(content)
            flat = torch.frombuffer(content, dtype=getattr(torch, header.dtype))
        else:
            flat = torch.empty(0, dtype=getattr(torch, header.dtype))
        yield header.name, flat.reshape(header.shape)


def write_weights(
    weights: Mapping[str, Tensor],
    mesh: Mesh,
    folder: Path,
    twice: Mapping[str, str],
    layout: StoredLayout = expert_parts,
) -> None:
    """Writes a safetensors file a rank, and their index: as transformers and vLLM read it. Raises OSError.

    `twice` has second names of some tensors, with the name that they are written under as well.
    """
    sizes = {
        name: prod(shape)
        for share, tensor in weights.items()
        for name, shape in hub_shapes(share, tensor.shape, layout)
    }
    ranks = _assign_ranks(sizes, mesh.world)
    doubled = {first: second for second, first in twice.items() if first in sizes}
    share: dict[str, Tensor] = {}
    for name, tensor in gather_tensors(weights, exchange_type(mesh), layout):
        if ranks[name] == mesh.rank:
            # A view would keep the experts of other ranks in memory.
            share[name] = tensor.to("cpu", copy=True).contiguous()
            if name in doubled:
                share[doubled[name]] = share[name]
    if share:
        write_tensors(folder / part_name(mesh.rank + 1, mesh.world), share)
    if mesh.rank == 0:
        where = ranks | {second: ranks[first] for first, second in doubled.items()}
        total = sum(size for name, size in sizes.items()) + sum(sizes[first] for first in doubled)
        files = {name: part_name(rank + 1, mesh.world) for name, rank in sorted(where.items())}
        (folder / INDEX_FILE).write_bytes(index_content(files, total * exchange_type(mesh).itemsize))


def _assign_ranks(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Returns a rank for each tensor, so that all write about as much: the largest first, each to whoever has least."""
    filled = [0] * world
    ranks = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        ranks[name] = filled.index(min(filled))
        filled[ranks[name]] += sizes[name]
    return ranks
