"""This module models an engine's paged cache of keys and values, as chains of segments instead of single blocks.

Invariants:
- `used + idle + free` is the capacity at all times; none is ever negative.
- Idle blocks stay until room is needed; then the segment that was given back first loses blocks from its end.
- A segment is given back before the segments that it extends: what is resident of a chain is always its beginning.
- The second tier has a copy of every whole block that was computed. So a block that the first tier still has takes room
  there as well, and a tier that is no larger than the first one holds nothing more than it.
"""

from collections import OrderedDict
from dataclasses import dataclass

from swe_rl.router.simulation.workload import SimulatedProgram

Key = tuple[str, str]
# vLLM's default block has so many tokens.
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """Names the segments of a program's blocks: what all share, what its group shares, its own. The first ends at
    `system_blocks` and the second at `shared_blocks`; only whole blocks are shared."""

    keys: tuple[Key, Key, Key]
    system_blocks: int
    shared_blocks: int

    def bounds(self, tokens: int) -> tuple[int, int, int]:
        """Returns how many blocks of each segment the first `tokens` need."""
        blocks = -(-tokens // BLOCK_TOKENS)
        system = min(blocks, self.system_blocks)
        group = min(blocks, self.shared_blocks) - system
        return system, group, blocks - system - group


def chain_of(program: SimulatedProgram) -> Chain:
    return Chain(
        (("system", ""), ("group", program.group), ("program", program.program_id)),
        program.system_tokens // BLOCK_TOKENS,
        max(program.system_tokens, program.prompt_tokens) // BLOCK_TOKENS,
    )


@dataclass(eq=False, slots=True)
class Segment:
    """Describes a part of a chain. `resident` of its blocks are in the cache, and `users` requests hold it there."""

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
        """Counts the blocks of the segment that are available now and would not be once it is held."""
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
        """Ends one hold on the segment. When nobody else holds it, its blocks stay as the newest of the idle ones."""
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
        """Takes available blocks for a request under way. They are counted in its segment later, or by `grow`."""
        if blocks > self.free:
            self._evict(blocks - self.free)
        self.free -= blocks
        self.used += blocks

    def grow(self, segment: Segment, blocks: int) -> None:
        self.take(blocks)
        segment.resident += blocks

    def shrink(self, segment: Segment, blocks: int) -> None:
        """Frees the last blocks of a held segment."""
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


class SimulatedTier:
    """Models the tier in the host's memory: copies of blocks, of which those that were used least lately leave."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self._blocks: OrderedDict[Key, int] = OrderedDict()

    def resident(self, key: Key) -> int:
        return self._blocks.get(key, 0)

    def keep(self, key: Key, blocks: int) -> None:
        """Copies the first `blocks` of a segment, as far as they are not there, and makes it the newest one."""
        if not self.capacity or not blocks:
            return
        known = self._blocks.pop(key, 0)
        self._blocks[key] = max(known, blocks)
        self.held += self._blocks[key] - known
        while self.held > self.capacity:
            oldest, there = next(iter(self._blocks.items()))
            lost = min(there, self.held - self.capacity)
            self.held -= lost
            if lost == there:
                del self._blocks[oldest]
            else:
                self._blocks[oldest] = there - lost

    def flush(self) -> None:
        self._blocks.clear()
        self.held = 0
