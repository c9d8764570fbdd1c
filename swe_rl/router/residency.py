"""Which programs' prefixes an engine probably still has: its cache of idle tokens, least recently used out first.

Invariants:
- Idle and pinned tokens never exceed the capacity after `squeeze`; what leaves is the longest idle.
- A program that runs is pinned, not idle. One of which less than half is left is not resident.
- `usable_share` stays within [0.5, 1]: what is observed about hits moves it.

The model is that of engines with block prefix caches (vLLM, SGLang): blocks of running requests are pinned, all others
are free in the order of their last use and taken from the oldest end when tokens are allocated. A program whose tokens
are partly gone keeps the head of its prefix, because the tail is freed first.
"""

from collections import OrderedDict
from dataclasses import dataclass

_MISS_STEP = -0.02
_HIT_STEP = 0.002


@dataclass(slots=True)
class _Idle:
    tokens: int
    left: int


class PrefixCache:
    def __init__(self) -> None:
        self._idle: OrderedDict[str, _Idle] = OrderedDict()
        self.idle_tokens = 0
        self.usable_share = 1.0

    def observe(self, expected_tokens: int, cached_tokens: int) -> None:
        """Of a request that was expected to find so much and found this. Misses shrink the model fast, hits let it
        grow back slowly."""
        if expected_tokens > 0:
            step = _MISS_STEP if 2 * cached_tokens < expected_tokens else _HIT_STEP
            self.usable_share = min(1.0, max(0.5, self.usable_share + step))

    def resident_tokens(self, program_id: str) -> int:
        """0: not resident."""
        idle = self._idle.get(program_id)
        return idle.left if idle is not None and 2 * idle.left >= idle.tokens else 0

    def keep(self, program_id: str, tokens: int) -> None:
        """It ran until now: it is the last to leave."""
        self.drop(program_id)
        if tokens > 0:
            self._idle[program_id] = _Idle(tokens, tokens)
            self.idle_tokens += tokens

    def drop(self, program_id: str) -> None:
        """It runs again, or its tokens are gone."""
        idle = self._idle.pop(program_id, None)
        if idle is not None:
            self.idle_tokens -= idle.left

    def squeeze(self, room_tokens: float) -> list[str]:
        """Programs that are no longer resident now that there is room for so many idle tokens."""
        room_tokens = max(0, int(self.usable_share * room_tokens))
        gone = []
        while self.idle_tokens > room_tokens and self._idle:
            program_id, idle = next(iter(self._idle.items()))
            was_resident = 2 * idle.left >= idle.tokens
            taken = min(idle.left, self.idle_tokens - room_tokens)
            idle.left -= taken
            self.idle_tokens -= taken
            if not idle.left:
                del self._idle[program_id]
            if was_resident and 2 * idle.left < idle.tokens:
                gone.append(program_id)
        return gone

    def clear(self) -> list[str]:
        """All that were resident."""
        gone = [program_id for program_id, idle in self._idle.items() if 2 * idle.left >= idle.tokens]
        self._idle.clear()
        self.idle_tokens = 0
        return gone
