"""The pure core of a router: (state, event, now) -> actions.

Invariants:
- A policy has no clock, no I/O and no randomness of its own; equal events at equal times give equal actions. The
  gateway and the simulator drive the same code.
- A request is answered by exactly one `Place`, at once or at a later event; until then it is held.
- All that a policy remembers is in its `state`; `step` updates it in place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A program wants a completion."""

    program_id: str
    request_id: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """It was answered, failed or was given up, held or running; its program acts now. `context_tokens`: its prompt and
    what was sampled."""

    program_id: str
    request_id: str
    context_tokens: int


@dataclass(frozen=True, slots=True)
class ProgramReleased:
    """The program will ask no more."""

    program_id: str


@dataclass(frozen=True, slots=True)
class EngineLoad:
    engine: str
    running: int
    waiting: int
    kv_used_tokens: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Comes every `tick_s` of a policy that has one."""

    loads: tuple[EngineLoad, ...]


Event = RequestArrived | RequestFinished | ProgramReleased | Tick


@dataclass(frozen=True, slots=True)
class Place:
    request_id: str
    engine: str


Action = Place

State = TypeVar("State")


class Policy(Protocol[State]):
    name: str
    tick_s: float | None  # None: no ticks

    def initial(self, engines: Sequence[str]) -> State: ...

    def step(self, state: State, event: Event, now_s: float) -> list[Action]: ...


class Router:
    """A policy with its state. Not thread-safe: one owner feeds it events in order."""

    def __init__(self, policy: Policy[State], engines: Sequence[str]) -> None:
        self.name = policy.name
        self.tick_s = policy.tick_s
        self.engines = tuple(engines)
        self._step: Callable[[Event, float], list[Action]] = partial(policy.step, policy.initial(self.engines))

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return self._step(event, now_s)
