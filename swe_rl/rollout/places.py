"""Places for those that act at once, in a number that may change while they act.

Invariants:
- Nobody who acts is disturbed: fewer places are felt as they are given back.
- Whoever waits is let in in the order of waiting.
"""

import asyncio
from typing import Literal


class Places(asyncio.Semaphore):
    """A semaphore of `limit` places, whose limit can be changed.

    `taken` places are in use, and `given_back` counts those that were.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit
        self.taken = 0
        self.given_back = 0
        # So many places are to be removed once they are free.
        self._surplus = 0

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        while self._surplus:
            self._surplus -= 1
            await super().acquire()
        self.taken += 1
        return True

    def release(self) -> None:
        self.taken -= 1
        self.given_back += 1
        self._free_one()

    def resize(self, limit: int) -> None:
        """Changes the number of places. Places in use above `limit` go as they are given back."""
        added = limit - self.limit
        self.limit = limit
        self._surplus += max(0, -added)
        for _ in range(added):
            self._free_one()

    def _free_one(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()
