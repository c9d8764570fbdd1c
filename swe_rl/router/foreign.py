"""This module holds a policy that a user wrote to what the gateway relies on.

Invariants:
- Each action places a request that waits, once, on an engine that serves. Anything else is an ExtensionFailure, as is
  whatever the policy raises. Its message names the policy.
- After a failure every further request is told the same, and those that wait are let go: none waits for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.extension.find import Foreign
from swe_rl.extension.make import ExtensionFailure, describe_failure, limit_time
from swe_rl.router.core import (
    Action,
    EngineAdded,
    EngineDrained,
    EngineLost,
    Event,
    Place,
    Policy,
    RequestArrived,
    RequestFinished,
)

# The event loop stands still during an event, so all calls of all agents wait for it.
_LONGEST_S = 10.0


@dataclass(slots=True)
class ForeignState:
    """Wraps the policy's own state, `inner`. `waiting` has the requests that it has to place."""

    inner: Any
    engines: dict[str, None]
    waiting: dict[str, None] = field(default_factory=dict)
    failed: str = ""

    def snapshot(self) -> dict[str, object]:
        inner: dict[str, object] = getattr(self.inner, "snapshot", dict)()
        return {"held_requests": len(self.waiting), **inner}


class ForeignPolicy:
    def __init__(self, policy: "Policy[Any]", maker: Foreign, *, limit_s: float = _LONGEST_S) -> None:
        self.name = maker.name
        self.tick_s: float | None = getattr(policy, "tick_s", None)
        self._policy = policy
        self._maker = maker
        self._limit_s = limit_s

    def initial(self, engines: Sequence[str]) -> ForeignState:
        """Returns the wrapped state. Raises ExtensionFailure."""
        try:
            with limit_time(self._limit_s):
                inner: object = self._policy.initial(engines)
            return ForeignState(inner, dict.fromkeys(engines))
        except Exception as error:
            raise ExtensionFailure(describe_failure(self._maker, "initial", error)) from error

    def step(self, state: ForeignState, event: Event, now_s: float) -> list[Action]:
        """Returns the policy's placements. After a failure it places the requests that wait anywhere, and raises
        ExtensionFailure for a request that arrives."""
        match event:
            case RequestArrived(request_id=name):
                state.waiting[name] = None
            case RequestFinished(request_id=name):
                state.waiting.pop(name, None)
            case EngineAdded(engine=name):
                state.engines[name] = None
            case EngineLost(engine=name) | EngineDrained(engine=name):
                state.engines.pop(name, None)
        actions = [] if state.failed else self._actions(state, event, now_s)
        if state.failed and isinstance(event, RequestArrived):
            state.waiting.pop(event.request_id, None)
            raise ExtensionFailure(state.failed)
        if state.failed and state.engines:
            engine = next(iter(state.engines))
            actions = [Place(name, engine, "the router failed") for name in state.waiting]
        for action in actions:
            state.waiting.pop(action.request_id, None)
        return actions

    def _actions(self, state: ForeignState, event: Event, now_s: float) -> list[Action]:
        """Returns the policy's actions. If they are wrong, it returns none and sets `failed`."""
        try:
            with limit_time(self._limit_s):
                actions = list(self._policy.step(state.inner, event, now_s))
        except Exception as error:
            state.failed = describe_failure(self._maker, "step", error)
            return []
        placed: set[str] = set()
        for action in actions:
            wrong = _describe_wrong(action, state, placed)
            if wrong:
                state.failed = f"{self._maker}: its method step {wrong}, on {type(event).__name__}"
                return []
            placed.add(action.request_id)
        return actions


def _describe_wrong(action: object, state: ForeignState, placed: set[str]) -> str:
    if not isinstance(action, Place):
        return f"must return swe_rl.api.Place objects, not {action!r:.80}"
    if action.engine not in state.engines:
        return f"placed a request on {action.engine!r}; there are {', '.join(state.engines) or 'no engines'}"
    if action.request_id not in state.waiting or action.request_id in placed:
        return f"placed {action.request_id!r}, which does not wait"
    return ""
