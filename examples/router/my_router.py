"""A router of your own: each trajectory is sent to the engine that it was assigned in turn, and stays there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl import api
from swe_rl.api import EngineAdded, Event, Place, ProgramReleased, RequestArrived, RequestFinished


@dataclass
class State:
    """All that the policy remembers: it has no clock, no I/O and no randomness."""

    engines: list[str]
    engine_of: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)  # request to program, while there is no engine
    begun: int = 0


class MyRouter:
    """Takes the engines in turn, `stride` further each time."""

    name = "my_router"
    tick_s = None  # seconds between two Ticks with the engines' load; None: none

    def __init__(self, stride: int = 1) -> None:
        self._stride = stride

    def initial(self, engines: Sequence[str]) -> State:
        return State(list(engines))

    def step(self, state: State, event: Event, now_s: float) -> list[Place]:
        match event:
            case RequestArrived(program_id, request_id):
                state.held[request_id] = program_id
            case RequestFinished(_, request_id):
                state.held.pop(request_id, None)
            case ProgramReleased(program_id):
                state.engine_of.pop(program_id, None)
            case EngineAdded(engine) if engine not in state.engines:
                state.engines.append(engine)
            case api.EngineLost(engine) | api.EngineDrained(engine) if engine in state.engines:
                state.engines.remove(engine)
                state.engine_of = {program: name for program, name in state.engine_of.items() if name != engine}
        return self._place(state)

    def _place(self, state: State) -> list[Place]:
        held, state.held = (state.held, {}) if state.engines else ({}, state.held)
        for program_id in held.values():
            if program_id not in state.engine_of:
                state.engine_of[program_id] = state.engines[state.begun * self._stride % len(state.engines)]
                state.begun += 1
        return [Place(request_id, state.engine_of[program_id], "in turn") for request_id, program_id in held.items()]
