"""An agent's own time: what its completions and commands took, without what they waited for.

Invariants:
- A completion's time is what passed less what its calls waited meanwhile, for the router or the engines; a command's
  is what it ran for. Waiting for a place to run it is in neither.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swe_rl.sandbox.protocol import Waited, ends_within, no_wait

T = TypeVar("T")


class Budget:
    """Seconds to spend; `spend` never goes back. `waited`: by the agent's calls, so far."""

    def __init__(self, total_s: float, waited: Waited = no_wait, clock: Callable[[], float] = time.monotonic) -> None:
        self._left_s = total_s
        self._waited = waited
        self._clock = clock

    @property
    def left_s(self) -> float:
        return max(0.0, self._left_s)

    @property
    def is_spent(self) -> bool:
        return self._left_s <= 0.0

    def spend(self, seconds_s: float) -> None:
        self._left_s -= max(0.0, seconds_s)

    async def on(self, completion: Coroutine[Any, Any, T]) -> T | None:
        """What it returns, or None when the budget ran out first, and then it is cancelled. Its own time is spent."""
        if self.is_spent:
            completion.close()
            return None
        began_s, before_s = self._clock(), self._waited()
        work = asyncio.ensure_future(completion)
        try:
            if not await ends_within(work, self.left_s, self._waited, self._clock):
                return None
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            self.spend(self._clock() - began_s - (self._waited() - before_s))
