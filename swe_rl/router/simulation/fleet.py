"""The fleet is router and engines in virtual time: programs ask, the router places, engines answer.

Invariants:
- The router is fed as the gateway's placement feeds it: arrived, finished, released, ticks, and weights that change; it
  is the same object.
- Who begins a program is told when it has acted, and says when it is released: grading is not the engines'.
- New weights end what is computed: each request under way keeps what it sampled, and computes its keys anew.
- Each sampled token counts for the version of the weights that sampled it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swe_rl.errors import RunError
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.concurrency import Look
from swe_rl.router.core import (
    OVERDUE,
    Action,
    Event,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    Router,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.simulation.blocks import BLOCK_TOKENS, chain_of
from swe_rl.router.simulation.clock import Happening, VirtualClock
from swe_rl.router.simulation.engine_model import EngineLimits, EngineModel, SimulatedRequest
from swe_rl.router.simulation.outcome import SimulationTally
from swe_rl.router.simulation.workload import SimulatedProgram

# After so long with nothing but ticks, nothing will ever be placed.
_STUCK_S = 24 * 3600.0


class SimulationError(RunError):
    """The router holds requests for ever, or names an engine that does not exist."""


@dataclass(slots=True)
class _Running:
    """Follows a program on its way; `request` is the one that is held or runs."""

    program: SimulatedProgram
    acted: Happening
    turn: int = 0
    context_tokens: int = 0
    engine: str | None = None
    request: SimulatedRequest | None = None
    versions: Counter[int] = field(default_factory=Counter)


class Fleet:
    """Runs one router and engines of one kind. The engines' weights have the version `version`."""

    def __init__(self, router: Router, speed: EngineSpeed, limits: EngineLimits) -> None:
        self.clock = VirtualClock()
        self.engines = {name: EngineModel(name, speed, limits) for name in router.engines}
        self.tally = SimulationTally()
        self.version = 0
        self._router = router
        self._call_s = speed.call_s
        # Maps a request to its program.
        self._asking: dict[str, _Running] = {}
        # Maps a program's id to it.
        self._running: dict[str, _Running] = {}
        self._woken: set[str] = set()

    def run(self, is_done: Callable[[], bool]) -> None:
        """Advances the time until `is_done`. Raises SimulationError."""
        if self._router.tick_s is not None:
            self.clock.tick_after(self._router.tick_s, self._tick)
        while not is_done():
            self._check_progress()
            self.clock.advance()

    def busy_s(self) -> float:
        """Returns the seconds in which engines computed until now, summed over all engines."""
        return sum(engine.busy_s(self.clock.now_s) for engine in self.engines.values())

    def look(self, under_way: int, ended: int) -> Look:
        """Returns what a run would see of the engines, with so many trajectories under way and ended."""
        loads = [engine.load(self.clock.now_s) for engine in self.engines.values()]
        held = sum(running.request is not None and not running.request.placed for running in self._asking.values())
        return Look(
            under_way=under_way,
            ended_total=ended,
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads) + held,
            preemptions_total=sum(load.preemptions_total for load in loads),
            returns_total=self.tally.returns,
            reusable_total=self.tally.reusable_tokens,
            reused_total=self.tally.reused_tokens,
        )

    # -- programs

    def begin(self, program: SimulatedProgram, acted: Happening) -> None:
        """Begins a program. `acted` is called after the tool of its last turn."""
        running = self._running[program.program_id] = _Running(program, acted)
        self.clock.after(program.boot_s + self._call_s, lambda: self._ask(running))

    def release(self, program: SimulatedProgram) -> Counter[int]:
        """Removes a graded program. Returns its sampled tokens, counted by weight version."""
        self.tally.response_tokens += program.total_tokens - program.prompt_tokens
        self.feed(ProgramReleased(program.program_id))
        return self._running.pop(program.program_id).versions

    def _ask(self, running: _Running) -> None:
        program = running.program
        turn = running.program.turns[running.turn]
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
        self.feed(RequestArrived(program.program_id, request.request_id, prompt_tokens, program.group, running.turn))

    def _answered(self, request: SimulatedRequest) -> None:
        running = self._asking.pop(request.request_id)
        running.versions[self.version] += request.sampled - sum(request.older.values())
        running.versions.update(request.older)
        self.tally.answer(request, (running.context_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        running.request = None
        running.context_tokens = request.prompt_tokens + request.out_tokens
        tool_s = running.program.turns[running.turn].tool_s
        running.turn += 1
        self.feed(
            RequestFinished(request.program_id, request.request_id, running.context_tokens, request.cached_tokens)
        )
        if running.turn < len(running.program.turns):
            self.clock.after(tool_s + self._call_s, lambda: self._ask(running))
        else:
            self.clock.after(tool_s, running.acted)

    # -- weights

    def renew(self, version: int, sync_s: float, then: Happening) -> None:
        """Sends new weights for `sync_s` seconds, in which no engine computes. Then it calls `then`."""
        self.feed(SyncBegan())
        for engine in self.engines.values():
            engine.interrupt(self.clock.now_s, self.version)

        def renewed() -> None:
            self.version = version
            for engine in self.engines.values():
                engine.is_interrupted = False
                if engine.has_work:
                    self._wake(engine)
            self.feed(SyncEnded(kv_kept=False))
            then()

        self.clock.after(sync_s, renewed)

    # -- router

    def feed(self, event: Event) -> None:
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
        self.tally.placement(
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
        self.feed(Tick(tuple(engine.load(self.clock.now_s) for engine in self.engines.values())))
        self.clock.tick_after(self._router.tick_s, self._tick)

    # -- engines

    def _wake(self, engine: EngineModel) -> None:
        """Starts the engine after all that happens at this very time: what arrives together starts together."""
        if engine.name not in self._woken:
            self._woken.add(engine.name)
            self.clock.after(0.0, lambda: self._start_steps(engine))

    def _start_steps(self, engine: EngineModel) -> None:
        self._woken.discard(engine.name)
        if engine.end_s is None and not engine.is_interrupted:
            engine.start_steps(self.clock.now_s)
            if engine.end_s is not None:
                self._at_end(engine)

    def _at_end(self, engine: EngineModel) -> None:
        end_s = engine.end_s
        assert end_s is not None
        self.clock.at(end_s, lambda: self._finish_steps(engine, end_s))

    def _finish_steps(self, engine: EngineModel, end_s: float) -> None:
        if engine.end_s != end_s:
            # An arrival or new weights ended the steps earlier.
            return
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
