"""This router is sticky and takes the engine with the least load: a program begins on the engine that has least to do
at that moment, and stays there.

Invariants:
- A program changes its engine only when that one is lost or drained.
- Loads count requests in flight only, never programs whose tools run; they end at zero. Ties go to the engine that
  comes first.
- Nothing is held while an engine is there.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from swe_rl.router.core import (
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
class InFlightLoad:
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class StickyState:
    # Has the open engines, and drained ones that still serve.
    engines: dict[str, InFlightLoad]
    open: list[str]
    engine_of: dict[str, str] = field(default_factory=dict)
    # Maps a request to its engine's load and its tokens.
    placed: dict[str, tuple[InFlightLoad, int]] = field(default_factory=dict)
    held: dict[str, RequestArrived] = field(default_factory=dict)
    log: DecisionLog = field(default_factory=DecisionLog)

    def snapshot(self) -> dict[str, object]:
        engines = [{"engine": name, "open": name in self.open, **asdict(load)} for name, load in self.engines.items()]
        programs = [{"program": program, "engine": engine} for program, engine in self.engine_of.items()]
        return {"engines": engines, "programs": programs, "held_requests": len(self.held), **self.log.snapshot()}


class StickyLeastLoadedPolicy:
    name = "sticky_least_loaded"
    tick_s: float | None = None

    def initial(self, engines: Sequence[str]) -> StickyState:
        return StickyState({name: InFlightLoad() for name in engines}, list(engines))

    def step(self, state: StickyState, event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived():
                if event.request_id in state.held:
                    return []
                return _place_request(state, event, now_s)
            case RequestFinished(_, request_id):
                _finish_request(state, request_id)
            case ProgramReleased(program_id):
                state.engine_of.pop(program_id, None)
            case EngineLost(engine):
                # What the lost engine served counts no more.
                state.engines[engine] = InFlightLoad()
                _close_engine(state, engine)
            case EngineDrained(engine):
                _close_engine(state, engine)
            case EngineAdded(engine):
                return _open_engine(state, engine, now_s)
        return []


def _place_request(state: StickyState, event: RequestArrived, now_s: float) -> list[Action]:
    if not state.open:
        state.held[event.request_id] = event
        return []
    engine = state.engine_of.get(event.program_id)
    reason = "stays"
    if engine is None:
        engine = min(state.open, key=lambda name: _load_key(state.engines[name]))
        reason = "least loaded"
        state.engine_of[event.program_id] = engine
    # An id may be used again.
    _finish_request(state, event.request_id)
    load = state.engines[engine]
    before_tokens = load.tokens
    load.requests += 1
    load.tokens += event.prompt_tokens
    state.placed[event.request_id] = load, event.prompt_tokens
    state.log.add(
        Decision(now_s, "RequestArrived", event.program_id, "place", engine, reason, event.prompt_tokens, before_tokens)
    )
    return [Place(event.request_id, engine, reason)]


def _load_key(load: InFlightLoad) -> tuple[int, int]:
    return load.requests, load.tokens


def _finish_request(state: StickyState, request_id: str) -> None:
    state.held.pop(request_id, None)
    load, tokens = state.placed.pop(request_id, (None, 0))
    if load is not None:
        load.requests -= 1
        load.tokens -= tokens


def _close_engine(state: StickyState, engine: str) -> None:
    if engine in state.open:
        state.open.remove(engine)
    state.engine_of = {program: where for program, where in state.engine_of.items() if where != engine}


def _open_engine(state: StickyState, engine: str, now_s: float) -> list[Action]:
    state.engines.setdefault(engine, InFlightLoad())
    if engine not in state.open:
        state.open.append(engine)
    held = state.held
    state.held = {}
    return [action for event in held.values() for action in _place_request(state, event, now_s)]
