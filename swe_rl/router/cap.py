"""This router has a static cap: each engine serves at most `max_programs` whole programs. The others wait, first come,
first served.

Invariants:
- An admitted program keeps its place and its engine until it is released, or until its engine is lost or drained. Then
  it waits again, before those that never began.
- More than `max_programs` are admitted only by requests that waited `max_hold_s`.
- Counts of programs end at zero.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.router.core import (
    OVERDUE,
    Action,
    Decision,
    DecisionLog,
    EngineAdded,
    EngineDrained,
    EngineLost,
    Event,
    Place,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
)


@dataclass(slots=True)
class Waiting:
    since_s: float
    requests: dict[str, None] = field(default_factory=dict)
    # A released program's requests are let go in their turn, but it takes no place.
    released: bool = False


@dataclass(slots=True)
class CapState:
    # Only open engines are counted here.
    programs_on: dict[str, int]
    engine_of: dict[str, str] = field(default_factory=dict)
    # These programs were admitted before, so they go first.
    begun: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    new: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    # These programs were admitted on an engine that is gone, and are not waiting yet.
    lost: set[str] = field(default_factory=set)
    log: DecisionLog = field(default_factory=DecisionLog)

    @property
    def waiting(self) -> int:
        return len(self.begun) + len(self.new)

    def snapshot(self) -> dict[str, object]:
        engines = [{"engine": engine, "programs": programs} for engine, programs in self.programs_on.items()]
        programs = [{"program": program, "engine": engine} for program, engine in self.engine_of.items()]
        return {"engines": engines, "programs": programs, "held_programs": self.waiting, **self.log.snapshot()}


class CapPolicy:
    name = "cap"

    def __init__(self, max_programs: int, max_hold_s: float, tick_s: float) -> None:
        """Takes the cap of one engine as `max_programs`."""
        self.max_programs = max_programs
        self.max_hold_s = max_hold_s
        self.tick_s: float | None = tick_s

    def initial(self, engines: Sequence[str]) -> CapState:
        return CapState(dict.fromkeys(engines, 0))

    def step(self, state: CapState, event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived(program_id, request_id):
                if program_id in state.engine_of:
                    engine = state.engine_of[program_id]
                    return [_place_request(state, program_id, request_id, engine, "admitted", now_s)]
                queue = state.begun if program_id in state.lost else state.new
                waiting = state.begun.get(program_id) or queue.setdefault(program_id, Waiting(now_s))
                waiting.requests[request_id] = None
                waiting.released = False
            case RequestFinished(program_id, request_id):
                _give_up(state, program_id, request_id)
            case ProgramReleased(program_id):
                _release_program(state, program_id)
            case EngineLost(engine) | EngineDrained(engine):
                _close_engine(state, engine)
            case EngineAdded(engine):
                state.programs_on.setdefault(engine, 0)
        return self._admit(state, now_s)

    def _admit(self, state: CapState, now_s: float) -> list[Action]:
        actions: list[Action] = []
        while state.waiting and state.programs_on:
            engine = min(state.programs_on, key=lambda name: state.programs_on[name])
            queue = state.begun or state.new
            reason = "a place is free"
            if state.programs_on[engine] >= self.max_programs:
                overdue = self._overdue(state, now_s)
                reason = OVERDUE
                if overdue is None:
                    break
                queue = overdue
            program_id, waiting = queue.popitem(last=False)
            state.lost.discard(program_id)
            if not waiting.released:
                state.engine_of[program_id] = engine
                state.programs_on[engine] += 1
            actions += [
                _place_request(state, program_id, request, engine, reason, now_s) for request in waiting.requests
            ]
        return actions

    def _overdue(self, state: CapState, now_s: float) -> OrderedDict[str, Waiting] | None:
        for queue in (state.begun, state.new):
            first = next(iter(queue.values()), None)
            if first is not None and now_s - first.since_s >= self.max_hold_s:
                return queue
        return None


def _place_request(state: CapState, program_id: str, request_id: str, engine: str, reason: str, now_s: float) -> Place:
    state.log.add(Decision(now_s, "", program_id, "place", engine, reason, held=state.waiting))
    return Place(request_id, engine, reason)


def _give_up(state: CapState, program_id: str, request_id: str) -> None:
    """Removes a held request. One that runs keeps its program's place."""
    for queue in (state.begun, state.new):
        waiting = queue.get(program_id)
        if waiting is not None and request_id in waiting.requests:
            del waiting.requests[request_id]
            if not waiting.requests:
                del queue[program_id]
                if queue is state.begun and not waiting.released:
                    state.lost.add(program_id)


def _release_program(state: CapState, program_id: str) -> None:
    """Frees the program's place. Its held requests are still answered: nobody else would tell their owners."""
    state.lost.discard(program_id)
    for queue in (state.begun, state.new):
        if program_id in queue:
            queue[program_id].released = True
    engine = state.engine_of.pop(program_id, None)
    if engine is not None:
        state.programs_on[engine] -= 1


def _close_engine(state: CapState, engine: str) -> None:
    if state.programs_on.pop(engine, None) is not None:
        gone = [program for program, where in state.engine_of.items() if where == engine]
        state.lost.update(gone)
        for program in gone:
            del state.engine_of[program]
