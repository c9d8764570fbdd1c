"""Places of a simulated run with rollout.concurrency=auto, and what a pace needs of the engines.

Invariants:
- The controller is the run's own (router/concurrency.py), with a look as often as there.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from swe_rl.facts.concurrency import Bounds
from swe_rl.router.concurrency import LOOK_S, ConcurrencyController, Look
from swe_rl.router.core import Event
from swe_rl.router.simulation.clock import Happening, VirtualClock
from swe_rl.router.simulation.outcome import SimulationTally
from swe_rl.router.simulation.workload import SimulatedProgram


class Drives(Protocol):
    """Has what a pace needs of the engines."""

    clock: VirtualClock
    version: int
    tally: SimulationTally

    def begin(self, program: SimulatedProgram, acted: Happening) -> None: ...
    def release(self, program: SimulatedProgram) -> Counter[int]: ...
    def renew(self, version: int, sync_s: float, then: Happening) -> None: ...
    def feed(self, event: Event) -> None: ...
    def busy_s(self) -> float: ...
    def look(self, under_way: int, ended: int) -> Look: ...


class FeltPlaces:
    """Changes the number of places by what the engines carry, as a run with rollout.concurrency=auto does. `resize` is
    given the new number."""

    def __init__(self, fleet: Drives, bounds: Bounds, resize: Callable[[int], None]) -> None:
        self.under_way = 0
        self.ended = 0
        # Has the time and the number of each change, the start included.
        self.changes = [(fleet.clock.now_s, bounds.start)]
        self._fleet = fleet
        self._resize = resize
        self._controller = ConcurrencyController(bounds)
        self._version = fleet.version
        fleet.clock.tick_after(LOOK_S, self._look)

    @property
    def limit(self) -> int:
        return self._controller.limit

    def _look(self) -> None:
        if self._fleet.version != self._version:
            self._version = self._fleet.version
            self._controller.renew()
        before = self._controller.limit
        limit = self._controller.observe(self._fleet.look(self.under_way, self.ended))
        if limit != before:
            self.changes.append((self._fleet.clock.now_s, limit))
            self._resize(limit)
        self._fleet.clock.tick_after(LOOK_S, self._look)
