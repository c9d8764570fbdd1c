"""An engine's paged cache of keys and values, as chains of segments instead of single blocks.

Invariants:
- `used + idle + free` is the capacity at all times; none is ever negative.
- Idle blocks stay until room is needed; then the segment that was given back first loses blocks from its end.
- A segment is given back before the segments that it extends: what is resident of a chain is always its beginning.
"""

from collections import OrderedDict
from dataclasses import dataclass

Key = tuple[str, str]


@dataclass(eq=False, slots=True)
class Segment:
    """`resident` blocks of it are in the cache; `users` requests hold it there."""

    key: Key
    resident: int = 0
    users: int = 0


class BlockCache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self.used = 0
        self.idle = 0
        self.evicted = 0
        self._segments: dict[Key, Segment] = {}
        self._idle: OrderedDict[Key, Segment] = OrderedDict()

    @property
    def available(self) -> int:
        return self.free + self.idle

    def resident(self, key: Key) -> int:
        segment = self._segments.get(key)
        return segment.resident if segment else 0

    def idle_blocks(self, key: Key) -> int:
        """Blocks of the segment that are available now and would not be once it is held."""
        segment = self._segments.get(key)
        return segment.resident if segment and not segment.users else 0

    def hold(self, key: Key) -> Segment:
        segment = self._segments.get(key)
        if segment is None:
            segment = self._segments[key] = Segment(key)
        if not segment.users and segment.resident:
            del self._idle[key]
            self.idle -= segment.resident
            self.used += segment.resident
        segment.users += 1
        return segment

    def give_back(self, segment: Segment) -> None:
        """Its blocks stay, as the newest of the idle ones, once nobody else holds it."""
        segment.users -= 1
        if segment.users:
            return
        self.used -= segment.resident
        if segment.resident:
            self._idle[segment.key] = segment
            self.idle += segment.resident
        else:
            del self._segments[segment.key]

    def take(self, blocks: int) -> None:
        """For a request under way, in whose segment they are counted later or by `grow`. `blocks` are available."""
        if blocks > self.free:
            self._evict(blocks - self.free)
        self.free -= blocks
        self.used += blocks

    def grow(self, segment: Segment, blocks: int) -> None:
        self.take(blocks)
        segment.resident += blocks

    def shrink(self, segment: Segment, blocks: int) -> None:
        """Of a held segment: its last blocks are free again."""
        segment.resident -= blocks
        self.used -= blocks
        self.free += blocks

    def flush(self) -> None:
        """Forgets all that nobody holds."""
        for key in self._idle:
            del self._segments[key]
        self._idle.clear()
        self.free += self.idle
        self.idle = 0

    def _evict(self, blocks: int) -> None:
        self.evicted += blocks
        self.idle -= blocks
        self.free += blocks
        while blocks:
            key, segment = next(iter(self._idle.items()))
            lost = min(blocks, segment.resident)
            segment.resident -= lost
            blocks -= lost
            if not segment.resident:
                del self._idle[key], self._segments[key]
