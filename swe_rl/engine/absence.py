"""The time in which no engine serves at all: work waits for one to come back, and not for ever.

Invariants:
- Time in which our event loop stood still is not in it: nobody could be seen to come back.
- An engine that starts its servers anew is not lost but starting, and gone when it gives up; this is about the others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from swe_rl.engine.loop_lag import TICK_S
from swe_rl.engine.protocol import Engine, EngineError, EngineState


class NoEngineError(EngineError):
    """No engine has served for so long that nothing is waited for any more."""


async def require_an_engine(
    engines: Sequence[Engine],
    limit_s: float,
    say: Callable[[str], None] = lambda _: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Returns never. Raises NoEngineError once every engine has been lost for `limit_s` without a break."""
    looked_s, away_s = clock(), 0.0
    while True:
        await sleep(TICK_S)
        before_s, looked_s = looked_s, clock()
        losses = [engine.why_lost for engine in engines if engine.state is EngineState.lost]
        if not losses or len(losses) < len(engines):
            away_s = 0.0
            continue
        if not away_s:
            say(f"no engine serves: work waits for one to come back, {limit_s:g} s at most (engine.max_away_s)")
        away_s += min(looked_s - before_s, 2 * TICK_S)
        if away_s >= limit_s:
            raise NoEngineError(
                f"No engine has served for {limit_s:g} s (engine.max_away_s): {'; '.join(map(str, losses))}. Start "
                "the servers of engine.urls again, and go on with trainer.resume=auto"
            )
