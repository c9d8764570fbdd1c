"""Restarts of a trainer whose ranks were lost: how many are left, and what each of them cost.

Invariants:
- Only a trainer that was up is started again: what fails at the first start would fail at the next one, too.
- No clock of its own.
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from swe_rl.trainer.errors import RankLost


class Restarts:
    """Of one start of a run. `used`: how many there were so far."""

    def __init__(self, allowed: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed, self.used = allowed, 0
        self._clock = clock
        self._went_on_s: float | None = None
        self._done_at_s: Mapping[int, float] = MappingProxyType({})
        self._lost: RankLost | None = None

    def take(self, lost: RankLost) -> str:
        """A line for the terminal. Raises `lost` where none is left."""
        if self._went_on_s is None or self.used >= self.allowed:
            raise lost
        self.used += 1
        self._lost = lost
        return f"trainer: rank {lost.rank} is lost ({lost.reason}); restart {self.used} of {self.allowed}"

    def went_on(self, step: int, done_at_s: Mapping[int, float]) -> dict[str, Any] | None:
        """The ranks are up, with the state after `step`. The fields of `trainer_restart`; None for the first start.

        `done_at_s`: when each step was done, filled by the loop as it goes. `lost_s` counts from the end of `step`
        until now: the work that is done again, and the restart.
        """
        now_s, lost, self._lost = self._clock(), self._lost, None
        fields = None
        if lost is not None:
            assert self._went_on_s is not None
            since_s = self._done_at_s.get(step, self._went_on_s)
            fields = {"step": step, "rank": lost.rank, "reason": lost.reason, "restart": self.used}
            fields |= {"lost_s": now_s - since_s}
        self._went_on_s, self._done_at_s = now_s, done_at_s
        return fields
