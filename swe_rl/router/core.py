"""This module is the core of every router: (state, event, now) -> actions.

Invariants:
- A policy has no clock, no I/O and no randomness of its own; equal events at equal times give equal actions. The
  gateway and the simulator drive the same code.
- A request is answered by exactly one `Place`, at once or at a later event; until then it is held.
- All that a policy remembers is in its `state`; `step` updates it in place.
- A policy ignores events that mean nothing to it, and ids that it does not know.
- The log is bounded: it keeps the latest `LIMIT` decisions, and counts all of them by kind and reason.
"""

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Protocol, TypeVar

# Status pages show the latest decisions. A long run makes too many to keep them all.
LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """Records a decision of a router, as status pages show it. `load_tokens` and `capacity_tokens` are the engine's
    before the decision, `tokens` are the program's, and `held` is the number of programs that wait. All are 0 if a
    router does not keep them."""

    now_s: float
    event: str
    program_id: str
    decision: str
    engine: str | None
    reason: str
    tokens: int = 0
    load_tokens: int = 0
    capacity_tokens: int = 0
    held: int = 0


class DecisionLog:
    def __init__(self) -> None:
        self._latest: deque[Decision] = deque(maxlen=LIMIT)
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, decision: Decision) -> None:
        self._latest.append(decision)
        self.counts[decision.decision, decision.reason] += 1

    def latest(self) -> list[Decision]:
        """Returns the latest decisions, oldest first."""
        return list(self._latest)

    def snapshot(self) -> dict[str, object]:
        counts = {f"{decision}: {reason}": number for (decision, reason), number in sorted(self.counts.items())}
        return {"decision_counts": counts, "decisions": [asdict(entry) for entry in self._latest]}


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A program wants a completion. Programs of one `group_id` begin with the same prompt."""

    program_id: str  # The program that asks: one trajectory.
    request_id: str  # `Place` names the request by it.
    prompt_tokens: int  # The length of the whole prompt.
    group_id: str | None = None
    turn: int | None = None  # The turn of the program, counted from 0; None if it is not known.


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request was answered, failed or was given up, held or running; its program acts now. `context_tokens` counts
    its prompt and what was sampled. `cached_tokens` counts what of its prompt was in the engine's prefix cache; None if
    that is not known."""

    program_id: str  # The program that asked.
    request_id: str  # The request that ended.
    context_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProgramReleased:
    """The program will ask no more."""

    program_id: str  # The program that ended.


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Describes an engine's load. `kv_used_tokens` belong to running requests; `preemptions_total` only grows.
    `host_capacity_tokens` is the size of its tier in the host's memory; 0: it has none, or does not say so."""

    engine: str  # The engine's name.
    running: int  # Requests that it samples for now.
    waiting: int  # Requests that wait inside of the engine.
    kv_used_tokens: int
    kv_capacity_tokens: int  # The size of its cache; 0 if it is not known.
    preemptions_total: int = 0
    host_capacity_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """Comes every `tick_s` of a policy that has one."""

    loads: tuple[EngineLoad, ...]  # The engines that serve, as they are now.


@dataclass(frozen=True, slots=True)
class EngineLost:
    """An engine died or cannot be reached: nothing it held is left. Its requests in flight still end with
    RequestFinished."""

    engine: str  # The engine's name.


@dataclass(frozen=True, slots=True)
class EngineDrained:
    """An engine gets nothing new until it is added again. What it serves ends there."""

    engine: str  # The engine's name.


@dataclass(frozen=True, slots=True)
class EngineAdded:
    """An engine is new, was restarted (so it is empty), or was drained before. If `kv_capacity_tokens` is 0, it is not
    known yet."""

    engine: str  # The engine's name.
    kv_capacity_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SyncBegan:
    """New weights are on their way to the engines. Syncs nest: as many `SyncEnded` end them."""


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """A sync ended. With `kv_kept`, the engines' prefix caches outlived it."""

    kv_kept: bool = False


@dataclass(frozen=True, slots=True)
class StepTail:
    """The step is in its tail: with `active`, no new program will come in this step. False, or the next `SyncBegan`,
    ends that."""

    active: bool = True


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """So many programs of a group have not ended, those that have not begun included. The group is of use when none is
    left. If a group has no such event, nothing is known of its programs."""

    group_id: str  # The group, as in `RequestArrived`.
    programs: int  # So many of its programs are left.


Event = (
    RequestArrived
    | RequestFinished
    | ProgramReleased
    | Tick
    | EngineLost
    | EngineDrained
    | EngineAdded
    | SyncBegan
    | SyncEnded
    | StepTail
    | GroupLeft
)


# A placement has this reason if it was held for router.max_hold_s, whether or not there is room.
OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Place:
    """Sends a request to an engine. `reason` explains the choice; two placements that differ only in it are equal."""

    request_id: str  # The request that is placed.
    engine: str  # The engine that gets it.
    reason: str = field(default="", compare=False)


Action = Place

State = TypeVar("State")


class Policy(Protocol[State]):
    """Defines a router's rules. `state` may have a method `snapshot()` that returns plain values, which status pages
    show."""

    name: str  # Figures and status pages call the router so.
    tick_s: float | None  # None: no ticks

    @abstractmethod
    def initial(self, engines: Sequence[str]) -> State:
        """Returns the state at first. `engines` are the names of those that serve."""
        ...

    @abstractmethod
    def step(self, state: State, event: Event, now_s: float) -> list[Action]:
        """Changes `state` in place and returns the placements. `now_s` are seconds of a clock that only goes
        forward."""
        ...


class Router:
    """Runs a policy with its state. It is not thread-safe: one owner feeds it events in order."""

    def __init__(self, policy: Policy[State], engines: Sequence[str]) -> None:
        self.name = policy.name
        self.tick_s = policy.tick_s
        self.engines = tuple(engines)
        state = policy.initial(self.engines)
        self._step: Callable[[Event, float], list[Action]] = partial(policy.step, state)
        self._snapshot: Callable[[], dict[str, object]] = getattr(state, "snapshot", dict)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return self._step(event, now_s)

    def snapshot(self) -> dict[str, object]:
        """Returns plain values (for JSON): the engines' ledgers, the programs and the latest decisions, if the policy
        keeps them."""
        return {"router": self.name, **self._snapshot()}
