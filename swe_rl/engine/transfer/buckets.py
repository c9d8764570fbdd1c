"""Tensors laid out in buckets, one after another in a buffer: what travels at once through shared memory.

Invariants:
- Every tensor is whole, in one bucket, in the order in which they were announced.
- No bucket is larger than the limit, but for one with a single tensor that is.
- Offsets are multiples of ALIGN bytes, so that any type can be read there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from swe_rl.engine.transfer.wire import Announced

ALIGN = 256
BUCKET_BYTES = 512 * 2**20
BUFFERS = 2  # one is filled while the other is read; bucket k is in buffer k % BUFFERS


@dataclass(frozen=True, slots=True)
class Placed:
    tensor: Announced
    offset: int
    size_bytes: int


Bucket = tuple[Placed, ...]


def buckets_of(announced: Iterable[Announced], item_bytes: int, limit_bytes: int = BUCKET_BYTES) -> tuple[Bucket, ...]:
    """`item_bytes`: of the type in which all of them travel."""
    found: list[Bucket] = []
    filling: list[Placed] = []
    end = 0
    for one in announced:
        size = prod(one.shape) * item_bytes
        start = -(-end // ALIGN) * ALIGN
        if filling and start + size > limit_bytes:
            found.append(tuple(filling))
            filling, start = [], 0
        filling.append(Placed(one, start, size))
        end = start + size
    return (*found, tuple(filling)) if filling else tuple(found)


def buffer_bytes(buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """The size of each buffer that is needed: the largest of its own buckets."""
    sizes = [bucket[-1].offset + bucket[-1].size_bytes for bucket in buckets]
    return tuple(max(sizes[number::BUFFERS]) for number in range(min(BUFFERS, len(sizes))))


def update_info(bucket: Bucket, number: int) -> dict[str, object]:
    """What a server is told of bucket `number`."""
    return {
        "buffer": number % BUFFERS,
        "names": [one.tensor.name for one in bucket],
        "dtype_names": [one.tensor.dtype for one in bucket],
        "shapes": [list(one.tensor.shape) for one in bucket],
        "offsets": [one.offset for one in bucket],
    }
