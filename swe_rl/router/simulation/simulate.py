"""The virtual-time loop: programs ask, the router places, engines answer.

Invariants:
- The router is fed as the gateway's placement feeds it: arrived, finished, released, ticks, and a weight sync between
  two steps; it is the same object.
- Equal arguments give equal outcomes: nothing is random.
- A simulation ends with every turn of every program done once, or with SimulationError.
- Time never goes back; of what happens at one time, what was planned first comes first.
- Ticks do not count as work: `idle` is True when nothing but them is planned.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swe_rl.errors import RunError, UserError
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.core import (
    OVERDUE,
    Action,
    Event,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    Router,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.simulation.engine_model import BLOCK_TOKENS, EngineLimits, EngineModel, SimulatedRequest, chain_of
from swe_rl.router.simulation.outcome import Outcome, StepOutcome, Tally, outcome_of
from swe_rl.router.simulation.workload import Program, Workload

Happening = Callable[[], None]


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.worked_s = 0.0  # when something other than a tick happened last
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
        """`time_s` is not in the past."""
        self._plan(time_s, True, happening)

    def after(self, delay_s: float, happening: Happening) -> None:
        self._plan(self.now_s + delay_s, True, happening)

    def tick_after(self, delay_s: float, happening: Happening) -> None:
        self._plan(self.now_s + delay_s, False, happening)

    def advance(self) -> None:
        """To what happens next."""
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


_STUCK_S = 24 * 3600.0  # of ticks alone: nothing will ever be placed


class SimulationError(RunError):
    """The router holds requests for ever, or names an engine that there is not."""


class SimulationTooSmall(UserError):
    """A trajectory does not fit into an engine."""


@dataclass(slots=True)
class _Running:
    """A program on its way; `request` is the one that is held or runs."""

    program: Program
    turn: int = 0
    context_tokens: int = 0
    engine: str | None = None
    request: SimulatedRequest | None = None


@dataclass(slots=True)
class _Step:
    started_s: float
    waiting: deque[Program]
    unfinished: int
    left_of_group: Counter[str]
    group_s: list[float] = field(default_factory=list)


class Simulation:
    """One router, engines of one kind and a workload; `run` once. Raises SimulationTooSmall.

    `tail_programs`: when a step has so many programs left, the router is told of its tail; 0: it never is.
    """

    def __init__(
        self,
        router: Router,
        workload: Workload,
        speed: EngineSpeed,
        limits: EngineLimits,
        *,
        tail_programs: int = 0,
    ) -> None:
        _check_size(workload, limits)
        self.clock = VirtualClock()
        self.engines = {name: EngineModel(name, speed, limits) for name in router.engines}
        self._router = router
        self._workload = workload
        self._call_s = speed.call_s
        self._tail_programs = tail_programs
        self._tally = Tally()
        self._steps = deque(workload.steps)
        self._step: _Step | None = None
        self._asking: dict[str, _Running] = {}  # by request
        self._woken: set[str] = set()

    def run(self) -> Outcome:
        """Raises SimulationError."""
        if self._router.tick_s is not None:
            self.clock.tick_after(self._router.tick_s, self._tick)
        self._next_step()
        while self._step is not None:
            self._check_progress()
            self.clock.advance()
        return self._outcome()

    # -- programs

    def _next_step(self) -> None:
        """Empty steps take no time."""
        while self._steps and not self._steps[0]:
            self._steps.popleft()
            self._tally.steps.append(StepOutcome(0.0, ()))
        if not self._steps:
            self._step = None
            return
        programs = self._steps.popleft()
        groups = Counter(program.group for program in programs)
        self._step = _Step(self.clock.now_s, deque(programs), len(programs), groups)
        for _ in range(min(self._workload.concurrency, len(programs))):
            self._start_program(self._step)

    def _start_program(self, step: _Step) -> None:
        running = _Running(step.waiting.popleft())
        self.clock.after(running.program.boot_s + self._call_s, lambda: self._ask(running))

    def _ask(self, running: _Running) -> None:
        program, turn = running.program, running.program.turns[running.turn]
        prompt_tokens = running.context_tokens + turn.new_in_tokens
        running.request = request = SimulatedRequest(
            request_id=f"{program.program_id}#{running.turn}",
            program_id=program.program_id,
            chain=chain_of(program),
            prompt_tokens=prompt_tokens,
            out_tokens=turn.out_tokens,
            arrived_s=self.clock.now_s,
            known_tokens=max(0, running.context_tokens - 1),
        )
        self._asking[request.request_id] = running
        self._feed(RequestArrived(program.program_id, request.request_id, prompt_tokens, program.group, running.turn))

    def _answered(self, request: SimulatedRequest) -> None:
        running = self._asking.pop(request.request_id)
        self._tally.answer(request, (running.context_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        running.request = None
        running.context_tokens = request.prompt_tokens + request.out_tokens
        tool_s = running.program.turns[running.turn].tool_s
        running.turn += 1
        self._feed(
            RequestFinished(request.program_id, request.request_id, running.context_tokens, request.cached_tokens)
        )
        if running.turn < len(running.program.turns):
            self.clock.after(tool_s + self._call_s, lambda: self._ask(running))
        else:
            self.clock.after(tool_s + running.program.grade_s, lambda: self._end_program(running.program))

    def _end_program(self, program: Program) -> None:
        step = self._step
        assert step is not None
        self._tally.response_tokens += program.total_tokens - program.prompt_tokens
        self._feed(ProgramReleased(program.program_id))
        step.left_of_group[program.group] -= 1
        if not step.left_of_group[program.group]:
            step.group_s.append(self.clock.now_s - step.started_s)
        step.unfinished -= 1
        if step.unfinished and step.unfinished == self._tail_programs:
            self._feed(StepTail())
        if step.waiting:
            self._start_program(step)
        if not step.unfinished:
            self._end_step(step)

    def _end_step(self, step: _Step) -> None:
        self._tally.steps.append(StepOutcome(self.clock.now_s - step.started_s, tuple(step.group_s)))
        if not self._steps:
            self._step = None
            return
        self._feed(SyncBegan())
        for engine in self.engines.values():
            engine.cache.flush()
        self.clock.after(self._workload.think_s, self._synced)

    def _synced(self) -> None:
        self._feed(SyncEnded(kv_kept=False))
        self._next_step()

    # -- router

    def _feed(self, event: Event) -> None:
        for action in self._router.handle(event, self.clock.now_s):
            running = self._asking.get(action.request_id)
            if running is not None and running.request is not None and not running.request.placed:
                self._place(running, running.request, action)

    def _place(self, running: _Running, request: SimulatedRequest, action: Action) -> None:
        name = action.engine
        engine = self.engines.get(name)
        if engine is None:
            raise SimulationError(f"router={self._router.name} placed {request.request_id} on {name}, which is unknown")
        request.placed = True
        moved = running.engine not in (None, name)
        self._tally.placement(
            self.clock.now_s - request.arrived_s,
            later_turn=running.turn > 0,
            moved=moved,
            forced=action.reason == OVERDUE,
        )
        running.engine = name
        end_s = engine.end_s
        engine.submit(request, self.clock.now_s)
        if engine.end_s is None:
            self._wake(engine)
        elif engine.end_s != end_s:
            self._at_end(engine)

    def _tick(self) -> None:
        assert self._router.tick_s is not None
        self._feed(Tick(tuple(engine.load(self.clock.now_s) for engine in self.engines.values())))
        self.clock.tick_after(self._router.tick_s, self._tick)

    # -- engines

    def _wake(self, engine: EngineModel) -> None:
        """After all that happens at this very time: what arrives together starts together."""
        if engine.name not in self._woken:
            self._woken.add(engine.name)
            self.clock.after(0.0, lambda: self._start_steps(engine))

    def _start_steps(self, engine: EngineModel) -> None:
        self._woken.discard(engine.name)
        engine.start_steps(self.clock.now_s)
        if engine.end_s is not None:
            self._at_end(engine)

    def _at_end(self, engine: EngineModel) -> None:
        end_s = engine.end_s
        assert end_s is not None
        self.clock.at(end_s, lambda: self._finish_steps(engine, end_s))

    def _finish_steps(self, engine: EngineModel, end_s: float) -> None:
        if engine.end_s != end_s:
            return  # an arrival ended them earlier
        finished = engine.finish_steps()
        self._wake(engine)
        for request in finished:
            self._answered(request)

    # -- the end

    def _check_progress(self) -> None:
        ticking = not self.clock.empty and self.clock.now_s - self.clock.worked_s < _STUCK_S
        if self.clock.idle and not ticking:
            raise SimulationError(
                f"router={self._router.name} holds {len(self._asking)} requests for ever: nothing runs, and it places "
                "none of them; this is an error of the policy"
            )

    def _outcome(self) -> Outcome:
        return outcome_of(
            self._router.name,
            self._tally,
            [engine.counts for engine in self.engines.values()],
            programs=sum(len(step) for step in self._workload.steps),
        )


def simulate(
    router: Router, workload: Workload, speed: EngineSpeed, limits: EngineLimits, *, tail_programs: int = 0
) -> Outcome:
    """Raises SimulationTooSmall, SimulationError."""
    return Simulation(router, workload, speed, limits, tail_programs=tail_programs).run()


def _check_size(workload: Workload, limits: EngineLimits) -> None:
    longest = workload.max_context_tokens
    if longest > limits.kv_capacity_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
        raise SimulationTooSmall(
            f"a trajectory of {longest} tokens does not fit into an engine's {limits.kv_capacity_tokens} tokens of "
            "keys and values: make rollout.max_trajectory_tokens smaller, or give an engine more memory "
            "(layout.engine_tp, engine.gpu_memory_utilization)"
        )
