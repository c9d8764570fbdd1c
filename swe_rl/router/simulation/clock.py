"""Virtual time jumps to what is planned next.

Invariants:
- Time never goes back; among what happens at one time, what was planned first comes first.
- Ticks do not count as work: `idle` is True when nothing but them is planned.
"""

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0
        # Something other than a tick happened last at this time.
        self.worked_s = 0.0
        self._planned: list[tuple[float, int, bool, Happening]] = []
        self._order = 0
        self._work = 0

    @property
    def idle(self) -> bool:
        return not self._work

    @property
    def empty(self) -> bool:
        return not self._planned

    def at(self, time_s: float, happening: Happening) -> None:
        """Plans what happens at `time_s`, which is not in the past."""
        self._plan(time_s, True, happening)

    def after(self, delay_s: float, happening: Happening) -> None:
        self._plan(self.now_s + delay_s, True, happening)

    def tick_after(self, delay_s: float, happening: Happening) -> None:
        self._plan(self.now_s + delay_s, False, happening)

    def advance(self) -> None:
        """Jumps to what happens next, and lets it happen."""
        self.now_s, _, work, happening = heapq.heappop(self._planned)
        if work:
            self._work -= 1
            self.worked_s = self.now_s
        happening()

    def _plan(self, time_s: float, work: bool, happening: Happening) -> None:
        assert time_s >= self.now_s, f"{time_s} is before {self.now_s}"
        self._order += 1
        self._work += work
        heapq.heappush(self._planned, (time_s, self._order, work, happening))
