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

from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Engine, EngineError, EngineState
from swe_rl.plan.sizes import shares_gpus


class Turns:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._sleep_s: float | None = None

    async def to_trainer(self) -> None:
        """The engines leave their GPUs. Nothing may be in flight; what comes now waits. Raises EngineError."""
        began_s = time.monotonic()
        await _each(self._engines, lambda engine: engine.sleep())
        self._sleep_s = time.monotonic() - began_s

    async def to_engines(self) -> None:
        """The trainer has given its memory back, and new weights follow. Raises EngineError."""
        if self._sleep_s is not None:
            await _each(self._engines, lambda engine: engine.may_wake())

    def times(self) -> dict[str, float]:
        """Seconds of the last turn, each the slowest engine's: `sleep_s`, `wake_s`. Before the first one nothing."""
        if self._sleep_s is None:
            return {}
        return {"sleep_s": self._sleep_s, "wake_s": max((engine.wake_s for engine in self._engines), default=0.0)}


def make_turns(config: Config, engines: Sequence[Engine]) -> Turns:
    return Turns(engines if shares_gpus(config) else [])


async def _each(engines: Sequence[Engine], step: Callable[[Engine], Awaitable[None]]) -> None:
    """All at the same time; whoever fails for good is left out, as the update of weights does."""
    ends = await asyncio.gather(*(step(engine) for engine in engines), return_exceptions=True)
    for engine, end in zip(engines, ends, strict=True):
        left_out = isinstance(end, EngineError) and engine.state is EngineState.gone
        if isinstance(end, BaseException) and not left_out:
            raise end
