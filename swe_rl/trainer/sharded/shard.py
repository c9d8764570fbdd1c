"""A rank's part of a sharded tensor, and the whole of it.

Invariants:
- Tensors are sharded along dimension 0 (FSDP2); a plain tensor is whole on every rank.
"""

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's rows, sharing their memory; a plain tensor is its own."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    local: Tensor = sharded.to_local()
    return local


def whole(tensor: Tensor) -> Tensor:
    """Put together again on every rank; all of them must call it. A plain tensor is its own."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    gathered: Tensor = sharded.full_tensor()
    return gathered


def shard_range(tensor: Tensor) -> tuple[int, int]:
    """First and last + 1 of this rank's rows."""
    if not is_sharded(tensor):
        return 0, tensor.shape[0]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    shape, offset = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    start = min(int(offset[0]), int(sharded.shape[0]))
    return start, start + int(shape[0])
