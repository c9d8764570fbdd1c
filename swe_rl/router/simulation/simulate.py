"""This module simulates steps of rollouts in virtual time, one after another, to show what a router makes of a
workload.

Invariants:
- Equal arguments give equal outcomes: nothing is random.
- A simulation ends with every turn of every program done once, or with SimulationError.
"""

import math

from swe_rl.facts.concurrency import Bounds
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.core import Router
from swe_rl.router.simulation.clock import VirtualClock
from swe_rl.router.simulation.engine_model import EngineLimits, EngineModel, require_room
from swe_rl.router.simulation.fleet import Fleet
from swe_rl.router.simulation.outcome import SimulationOutcome, StepOutcome, outcome_of
from swe_rl.router.simulation.pace import StepsPace, TrainerSpeed
from swe_rl.router.simulation.workload import Workload


class Simulation:
    """Runs one router and engines of one kind under a workload; `run` may be called once. Raises SimulationTooSmall.

    When a step has `tail_programs` programs left, the router is told of its tail; with 0 it never is. With `bounds` the
    number of programs at once is felt for, as with rollout.concurrency=auto.
    """

    def __init__(
        self,
        router: Router,
        workload: Workload,
        speed: EngineSpeed,
        limits: EngineLimits,
        *,
        tail_programs: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        require_room(workload.max_context_tokens, limits)
        self._router = router
        self._workload = workload
        self._fleet = Fleet(router, speed, limits)
        self._tail_programs = tail_programs
        self._bounds = bounds
        # With `bounds`: the time and the number of places at each change.
        self.changes: list[tuple[float, int]] = []

    @property
    def engines(self) -> dict[str, EngineModel]:
        return self._fleet.engines

    @property
    def clock(self) -> VirtualClock:
        return self._fleet.clock

    def run(self, until_s: float = math.inf) -> SimulationOutcome:
        """Runs all steps, or the first one up to `until_s`, and returns the outcome. Raises SimulationError."""
        load = self._workload
        between = TrainerSpeed(0.0, load.think_s)
        tail = self._tail_programs
        pace = StepsPace(
            self._fleet,
            load.steps,
            between,
            places=load.concurrency,
            tail_programs=tail,
            bounds=self._bounds,
        )
        self._fleet.run(lambda: pace.is_sampled or self.clock.now_s >= until_s)
        if not pace.is_sampled:
            self._fleet.tally.steps.append(StepOutcome(until_s, ()))
        self.changes = pace.changes
        return outcome_of(
            self._router.name,
            self._fleet.tally,
            [engine.counts for engine in self.engines.values()],
            programs=sum(len(step) for step in load.steps),
        )


def simulate_router(
    router: Router,
    workload: Workload,
    speed: EngineSpeed,
    limits: EngineLimits,
    *,
    tail_programs: int = 0,
    bounds: Bounds | None = None,
) -> SimulationOutcome:
    """Simulates a workload and returns the outcome. Raises SimulationTooSmall, SimulationError."""
    return Simulation(router, workload, speed, limits, tail_programs=tail_programs, bounds=bounds).run()
