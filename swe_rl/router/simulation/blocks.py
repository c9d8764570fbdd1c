"""This module models an engine's paged cache of keys and values, as chains of parts instead of single blocks.

Invariants:
- `used + idle + free` is the capacity at all times; none is ever negative.
- Idle blocks stay until room is needed; then the part that was given back first loses blocks from its end.
- A part is given back before the parts that it extends: what is resident of a chain is always its beginning.
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
    """Names the parts of a program's blocks: what all share, what its group shares, its own. The first ends at
    `system_blocks` and the second at `shared_blocks`; only whole blocks are shared."""

    keys: tuple[Key, Key, Key]
    system_blocks: int
    shared_blocks: int

    def bounds(self, tokens: int) -> tuple[int, int, int]:
        """Returns how many blocks of each part the first `tokens` need."""
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
class ChainPart:
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
        self._parts: dict[Key, ChainPart] = {}
        self._idle: OrderedDict[Key, ChainPart] = OrderedDict()

    @property
    def available(self) -> int:
        return self.free + self.idle

    def resident(self, key: Key) -> int:
        part = self._parts.get(key)
        return part.resident if part else 0

    def idle_blocks(self, key: Key) -> int:
        """Counts the blocks of the part that are available now and would not be once it is held."""
        part = self._parts.get(key)
        if part and not part.users:
            return part.resident
        return 0

    def hold(self, key: Key) -> ChainPart:
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = ChainPart(key)
        if not part.users and part.resident:
            del self._idle[key]
            self.idle -= part.resident
            self.used += part.resident
        part.users += 1
        return part

    def give_back(self, part: ChainPart) -> None:
        """Ends one hold on the part. When nobody else holds it, its blocks stay as the newest of the idle ones."""
        part.users -= 1
        if part.users:
            return
        self.used -= part.resident
        if part.resident:
            self._idle[part.key] = part
            self.idle += part.resident
        else:
            del self._parts[part.key]

    def take(self, blocks: int) -> None:
        """Takes available blocks for a request under way. They are counted in its part later, or by `grow`."""
        if blocks > self.free:
            self._evict(blocks - self.free)
        self.free -= blocks
        self.used += blocks

    def grow(self, part: ChainPart, blocks: int) -> None:
        self.take(blocks)
        part.resident += blocks

    def shrink(self, part: ChainPart, blocks: int) -> None:
        """Frees the last blocks of a held part."""
        part.resident -= blocks
        self.used -= blocks
        self.free += blocks

    def flush(self) -> None:
        """Forgets all that nobody holds."""
        for key in self._idle:
            del self._parts[key]
        self._idle.clear()
        self.free += self.idle
        self.idle = 0

    def _evict(self, blocks: int) -> None:
        self.idle -= blocks
        self.free += blocks
        while blocks:
            key, part = next(iter(self._idle.items()))
            lost = min(blocks, part.resident)
            part.resident -= lost
            blocks -= lost
            if not part.resident:
                del self._idle[key], self._parts[key]


class SimulatedTier:
    """Models the tier in the host's memory: copies of blocks, of which those that were used least lately leave."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self._blocks: OrderedDict[Key, int] = OrderedDict()

    def resident(self, key: Key) -> int:
        return self._blocks.get(key, 0)

    def keep(self, key: Key, blocks: int) -> None:
        """Copies the first `blocks` of a part, as far as they are not there, and makes it the newest one."""
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
