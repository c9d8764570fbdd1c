"""Says which rank does what, and has which rows of a tensor.

Ranks form data-parallel groups of sequence-parallel ranks. A group of expert-parallel ranks has all experts of a
mixture once; it has nothing to do with the other two. A replica is a group of ranks that has all parameters once.

Invariants:
- Ranks of one sequence-parallel group are neighbours: rank = dp_rank * sp + sp_rank. They see the same rows.
- Parameters are sharded along dimension 0 (FSDP2) over the ranks of a replica, whatever the split into dp and sp; a
  plain tensor is whole on every rank. Of spread experts each rank has a run of rows as well: first the group shares
  them out, then the groups of a replica do.
- Ranks of one replica are neighbours: rank = replica * (world / replicas) + shard rank. Ranks at the same place of two
  replicas have the same rows, gradients and optimizer state, bit for bit: they are sent the same sums (hybrid sharding:
  Zhao et al., PyTorch FSDP, arXiv:2304.11277, section 3.2.2).
- Ranks of one expert-parallel group are neighbours in one replica: ep_rank = rank % ep.
- Every collective is called by every rank in the same order; without a process group all of them are the identity.
- A waiting rank gives up after its time limit, never waits for ever.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from swe_rl.host.addresses import interface_towards
from swe_rl.trainer.trainer import MeshError

_LOOPBACK = "/sys/class/net/lo"


@dataclass(frozen=True, slots=True)
class Mesh:
    """The arrangement of `dp` * `sp` ranks, of which this is `rank`.

    `shards` is a DeviceMesh over all of them, as `fully_shard` takes it: of the ranks, or of `replicas` and the ranks
    of each; None is that of `lone_mesh`. Where `ep` ranks share the experts, `expert_shards` is such a mesh of those
    that have the same ones, and `expert_ranks` the DeviceMesh of this rank's group.
    """

    dp: int
    sp: int
    rank: int
    device: torch.device
    shards: Any
    sp_group: Any
    ep: int = 1
    expert_shards: Any = None
    expert_ranks: Any = None
    replicas: int = 1

    @property
    def world(self) -> int:
        return self.dp * self.sp

    @property
    def dp_rank(self) -> int:
        return self.rank // self.sp

    @property
    def sp_rank(self) -> int:
        return self.rank % self.sp

    @property
    def replica(self) -> int:
        """The number of this rank's replica."""
        return self.rank // (self.world // self.replicas)

    @property
    def shard_rank(self) -> int:
        """The place of this rank in its replica."""
        return self.rank % (self.world // self.replicas)

    @property
    def ep_rank(self) -> int:
        return self.rank % self.ep

    @property
    def ep_group(self) -> Any:
        if self.expert_ranks:
            return self.expert_ranks.get_group()
        return None

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum over all ranks; the argument is left as it is."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def minimum(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MIN)

    def maximum(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MAX)

    def barrier(self) -> None:
        """Returns once every rank is here; a reduction, because it works alike on every back end."""
        self.sum(torch.zeros(1, device=self.device)).item()

    def _reduced(self, values: Tensor, operation: Any) -> Tensor:
        reduced = values.detach().clone()
        if self.world > 1:
            dist.all_reduce(reduced, op=operation)
        return reduced


def lone_mesh(device: torch.device) -> Mesh:
    """Returns the mesh of this process alone: every collective is the identity, and nothing is sharded."""
    return Mesh(dp=1, sp=1, rank=0, device=device, shards=None, sp_group=None)


def make_mesh(sp: int, device: torch.device, ep: int = 1, shard_ranks: int | None = None) -> Mesh:
    """Returns the mesh over the default process group, already up. `shard_ranks` are of a replica; None: all.

    Raises MeshError where one of the numbers does not divide the group's size, or `ep` not a replica's.
    """
    world = dist.get_world_size()
    rank = dist.get_rank()
    if shard_ranks is None:
        share = world
    else:
        share = shard_ranks
    for key, ways in {"shard_ranks": share, "expert_parallel": ep, "sequence_parallel": sp}.items():
        if ways < 1 or world % ways:
            raise MeshError(
                f"layout.{key}={ways} does not divide the {world} ranks of the trainer: choose a divisor of "
                "layout.trainer_gpus."
            )
    if share % ep:
        raise MeshError(
            f"layout.expert_parallel={ep} does not divide layout.shard_ranks={share}: ranks that share the experts are "
            "of one replica."
        )
    replicas = world // share
    groups = [list(range(first, first + sp)) for first in range(0, world, sp)]
    group = None
    if sp > 1:
        group = dist.new_subgroups_by_enumeration(groups)[0]
    shards = _device_mesh(device, replicas, shard=share)
    mesh = Mesh(dp=world // sp, sp=sp, rank=rank, device=device, shards=shards, sp_group=group, replicas=replicas)
    if ep == 1:
        return mesh
    spread = _device_mesh(device, replicas, shard=share // ep, expert=ep)
    if replicas > 1:
        expert_shards = spread["replica", "shard"]
    else:
        expert_shards = spread["shard"]
    return replace(mesh, ep=ep, expert_shards=expert_shards, expert_ranks=spread["expert"])


def _device_mesh(device: torch.device, replicas: int, **sizes: int) -> Any:
    """Returns a mesh with a dimension of each name, and that of the replicas before them where there are several."""
    if replicas > 1:
        dimensions = {"replica": replicas, **sizes}
    else:
        dimensions = sizes
    return init_device_mesh(device.type, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))


@contextmanager
def process_group(
    rank: int, world: int, device: torch.device, address: str = "127.0.0.1:0", timeout_s: float = 1800.0
) -> Iterator[None]:
    """Opens the default process group for the length of the block. `address` is host:port of rank 0.

    Raises MeshError where the ranks do not find each other in time.
    """
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
    limit = timedelta(seconds=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if address.startswith("127.") and Path(_LOOPBACK).exists():
        # A host without a network may not know its own name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif world > 1 and (interface := interface_towards(address.rpartition(":")[0])) is not None:
        # The name of a host may be loopback's.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        dist.init_process_group(
            backend, store=_make_store(rank, world, address, limit), rank=rank, world_size=world, timeout=limit
        )
    except (RuntimeError, ValueError) as error:
        raise MeshError(
            f"Rank {rank} of {world} did not find the others at {address} within {timeout_s:.0f} s ({error}). Look at "
            "the other ranks' logs for what stopped them, or raise trainer.collective_timeout_s."
        ) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def _make_store(rank: int, world: int, address: str, limit: timedelta) -> Any:
    from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

    if world == 1:
        return HashStore()
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), world, is_master=rank == 0, timeout=limit)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor) -> Tensor:
    """Returns this rank's rows, sharing their memory; a plain tensor is returned itself."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    local: Tensor = sharded.to_local()
    return local


def gather_whole(tensor: Tensor) -> Tensor:
    """Returns a tensor put together again, on every rank; all of them must call it. A plain tensor is
    returned itself.
    """
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    if sharded.ndim and sum(not placement.is_replicate() for placement in sharded.placements) > 1:
        return _whole_experts(sharded)
    gathered: Tensor = sharded.full_tensor()
    return gathered


def _whole_experts(sharded: Any) -> Tensor:
    """Gathers from those that have the same experts, then from the group: torch's own way is the same,
    and warns of it.
    """
    from torch.distributed.tensor import DTensor, Shard

    shards, group = (sharded.device_mesh[name] for name in sharded.device_mesh.mesh_dim_names[-2:])
    shape = torch.Size([sharded.shape[0] // group.size(), *sharded.shape[1:]])
    rows = DTensor.from_local(
        sharded.to_local(), shards, [Shard(0)], run_check=False, shape=shape, stride=sharded.stride()
    ).full_tensor()
    gathered: Tensor = DTensor.from_local(rows, group, [Shard(0)], run_check=False).full_tensor()
    return gathered


def replicas_of(tensor: Tensor) -> int:
    """Returns how many ranks have this rank's rows; 1 for a plain tensor."""
    if not is_sharded(tensor):
        return 1
    sharded: Any = tensor
    ways = zip(sharded.device_mesh.shape, sharded.placements, strict=True)
    return prod(size for size, placement in ways if placement.is_replicate())


def shard_range(tensor: Tensor) -> tuple[int, int]:
    """Returns the first and last + 1 of this rank's rows."""
    if not is_sharded(tensor):
        return 0, tensor.shape[0]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    shape, offset = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    # A rank without rows may have an offset behind the last row.
    start = min(int(offset[0]), int(sharded.shape[0]))
    return start, start + int(shape[0])
