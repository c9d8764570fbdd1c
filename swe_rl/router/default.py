"""Sticky, least programs: a program stays on the engine that it was first placed on, so its prefix stays cached.

Invariants:
- Every known program sits on one engine until it is released; counts are never negative.
- Nothing is ever held. Ties go to the engine that comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.router.core import Action, Event, Place, ProgramReleased, RequestArrived


@dataclass(slots=True)
class DefaultState:
    programs_per_engine: dict[str, int]
    engine_of: dict[str, str] = field(default_factory=dict)


class DefaultPolicy:
    name = "default"
    tick_s: float | None = None

    def initial(self, engines: Sequence[str]) -> DefaultState:
        return DefaultState(dict.fromkeys(engines, 0))

    def step(self, state: DefaultState, event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived(program_id, request_id):
                return [Place(request_id, self._engine(state, program_id))]
            case ProgramReleased(program_id):
                engine = state.engine_of.pop(program_id, None)
                if engine is not None:
                    state.programs_per_engine[engine] -= 1
        return []

    def _engine(self, state: DefaultState, program_id: str) -> str:
        if program_id not in state.engine_of:
            counts = state.programs_per_engine
            engine = min(counts, key=lambda name: counts[name])
            state.engine_of[program_id] = engine
            counts[engine] += 1
        return state.engine_of[program_id]
