"""This router is sticky and takes the engine with the fewest programs: a program stays on the engine that it was first
placed on, so its prefix stays cached.

Invariants:
- Every known program sits on one engine until it is released or its engine is gone; counts are never negative.
- Nothing is held while an engine is there. Ties go to the engine that comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.router.core import (
    Action,
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
class DefaultState:
    programs_per_engine: dict[str, int]
    engine_of: dict[str, str] = field(default_factory=dict)
    # Maps a request to its program, while there is no engine.
    held: dict[str, str] = field(default_factory=dict)

    def snapshot(self) -> dict[str, object]:
        engines = [{"engine": engine, "programs": number} for engine, number in self.programs_per_engine.items()]
        programs = [{"program": program, "engine": engine} for program, engine in self.engine_of.items()]
        return {"engines": engines, "programs": programs, "held_requests": len(self.held)}


class DefaultPolicy:
    name = "default"
    tick_s: float | None = None

    def initial(self, engines: Sequence[str]) -> DefaultState:
        return DefaultState(dict.fromkeys(engines, 0))

    def step(self, state: DefaultState, event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived(program_id, request_id):
                state.held[request_id] = program_id
                return self._place_held(state)
            case RequestFinished(_, request_id):
                state.held.pop(request_id, None)
            case ProgramReleased(program_id):
                engine = state.engine_of.pop(program_id, None)
                if engine is not None:
                    state.programs_per_engine[engine] -= 1
            case EngineLost(engine) | EngineDrained(engine):
                state.programs_per_engine.pop(engine, None)
                state.engine_of = {program: where for program, where in state.engine_of.items() if where != engine}
            case EngineAdded(engine):
                state.programs_per_engine.setdefault(engine, 0)
                return self._place_held(state)
        return []

    def _place_held(self, state: DefaultState) -> list[Action]:
        if not state.programs_per_engine:
            return []
        held = state.held
        state.held = {}
        return [Place(request_id, *self._engine(state, program_id)) for request_id, program_id in held.items()]

    def _engine(self, state: DefaultState, program_id: str) -> tuple[str, str]:
        """Returns the program's engine, and the reason that `GET /router/state` shows for it."""
        if program_id in state.engine_of:
            return state.engine_of[program_id], "stays"
        counts = state.programs_per_engine
        engine = min(counts, key=lambda name: counts[name])
        state.engine_of[program_id] = engine
        counts[engine] += 1
        return engine, "fewest programs"
