"""Engines and a trainer that take turns on the same GPUs.

Invariants:
- Outside of `to_trainer` ... `to_engines` the GPUs are the engines'; a run begins so, with engines that are awake.
- After `to_trainer` no server has memory on a GPU beyond what sleeping leaves: it sleeps, or its process has ended.
- After `to_engines` every engine that will serve again has a running server, which serves with the next update of
  weights and not before: that update wakes it, and nothing else does.
- Without engines that sleep, all of it does nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Engine, EngineError
from swe_rl.engine.update import is_gone
from swe_rl.plan.sizes import shares_gpus


@runtime_checkable
class Sleeps(Protocol):
    """An engine whose server can leave its GPUs to somebody else for a while."""

    name: str

    async def sleep(self) -> None:
        """Its GPUs' memory is free when this returns. Raises EngineError where it will not serve again."""
        ...

    async def may_wake(self) -> None:
        """Its GPUs are free again. Raises EngineError where it will not serve again."""
        ...

    @property
    def wake_s(self) -> float: ...


class Turns:
    def __init__(self, engines: Sequence[Sleeps]) -> None:
        self._engines = engines
        self._sleep_s: float | None = None

    async def to_trainer(self) -> None:
        """The engines leave their GPUs. Nothing may be in flight; what comes now waits. Raises EngineError."""
        began_s = time.monotonic()
        await _each(self._engines, lambda one: one.sleep())
        self._sleep_s = time.monotonic() - began_s

    async def to_engines(self) -> None:
        """The trainer has given its memory back, and new weights follow. Raises EngineError."""
        if self._sleep_s is not None:
            await _each(self._engines, lambda one: one.may_wake())

    def times(self) -> dict[str, float]:
        """Seconds of the last turn, each the slowest engine's: `sleep_s`, `wake_s`. Before the first one nothing."""
        if self._sleep_s is None:
            return {}
        return {"sleep_s": self._sleep_s, "wake_s": max((one.wake_s for one in self._engines), default=0.0)}


def make_turns(config: Config, engines: Sequence[Engine]) -> Turns:
    return Turns([one for one in engines if isinstance(one, Sleeps)] if shares_gpus(config) else [])


async def _each(engines: Sequence[Sleeps], step: Callable[[Sleeps], Awaitable[None]]) -> None:
    """All at the same time; whoever fails for good is left out, as the update of weights does."""
    ends = await asyncio.gather(*(step(one) for one in engines), return_exceptions=True)
    for engine, end in zip(engines, ends, strict=True):
        if isinstance(end, BaseException) and not (isinstance(end, EngineError) and is_gone(engine)):
            raise end
