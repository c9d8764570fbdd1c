"""This module hands numbered buckets from one who fills them to several who take them, in a fixed number of buffers.

Invariants:
- Bucket k is filled when everybody who still takes has taken bucket k - `buffers`: nothing is overwritten unread.
- Nobody waits for one who left, nor for a filler that failed.
- Whoever has left waits at `wait_until_cleared` until the filler has put the buffers away.
"""

import asyncio
from collections.abc import Iterable

from swe_rl.engine.engine import EngineError


class Belt:
    """Carries buckets to `takers`, by name, who take all of them in their order."""

    def __init__(self, takers: Iterable[str], buffers: int) -> None:
        self._next = dict.fromkeys(takers, 0)  # This is the bucket that each takes next.
        self._buffers = buffers
        self._filled = 0
        self._is_clear = False
        self._failure: str | None = None
        self._changed = asyncio.Condition()

    async def wait_for_room(self, number: int) -> bool:
        """Waits until bucket `number` may be filled; False where nobody takes it any more."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: all(next_bucket > number - self._buffers for next_bucket in self._next.values())
            )
            return bool(self._next)

    async def note_filled(self, number: int) -> None:
        async with self._changed:
            self._filled = number + 1
            self._changed.notify_all()

    async def wait_until_left(self) -> None:
        """Waits until nobody takes any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._next)

    async def note_cleared(self) -> None:
        """Says that the buffers are put away."""
        async with self._changed:
            self._is_clear = True
            self._changed.notify_all()

    async def note_failure(self, reason: str) -> None:
        """Says that nothing is filled any more."""
        async with self._changed:
            self._failure = reason
            self._changed.notify_all()

    async def wait_until_filled(self, number: int) -> None:
        """Waits until bucket `number` can be taken. Raises EngineError where that will not be."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._filled > number or self._failure is not None)
            self._check()

    async def note_taken(self, name: str, number: int) -> None:
        async with self._changed:
            self._next[name] = number + 1
            self._changed.notify_all()

    async def leave(self, name: str) -> None:
        """Lets a taker go, which takes no more. It may be called twice."""
        async with self._changed:
            self._next.pop(name, None)
            self._changed.notify_all()

    async def wait_until_cleared(self) -> None:
        """Waits until the buffers are put away. Raises EngineError where the filler failed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_clear or self._failure is not None)
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the trainer stopped putting weights together: {self._failure}")
