"""For how long the event loop stood still: time in which nothing here could hear an answer.

Invariants:
- What is late is counted at once, also by whoever runs before the next beat does.
- Only grows; a loop that turns in time adds nothing.
"""

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.25


class LoopLag:
    """`run` beats every TICK_S for as long as its task lives. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_s = clock()
        self._late_s = 0.0

    def beat(self) -> None:
        now_s = self._clock()
        self._late_s += self._late(now_s)
        self._beat_s = now_s

    def total_s(self) -> float:
        """Seconds so far."""
        return self._late_s + self._late(self._clock())

    def restart(self) -> None:
        """Nobody beat until now, which is no lag."""
        self._beat_s = self._clock()

    async def run(self) -> None:
        self.restart()
        while True:
            await asyncio.sleep(TICK_S)
            self.beat()

    def _late(self, now_s: float) -> float:
        return max(0.0, now_s - self._beat_s - TICK_S)
