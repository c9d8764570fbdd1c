"""Watches engines over time: samples their load for `events.jsonl`, and the time in which none of them serves.

Invariants:
- Samples come often at first and ever more rarely: one after each hundredth of the time so far, never faster than
  `SHORTEST_S`, never slower than `LONGEST_S`. So a step of seconds is seen in detail and one of hours stays small.
- A sample that equals the one before is not written: what was last written holds until the next one, or the end.
- Work waits for an engine to come back, and not for ever. Time in which our event loop stood still is not counted:
  nobody could be seen to come back.
- An engine that starts its servers anew is not lost but starting, and gone when it gives up; that is not counted.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from swe_rl.engine.engine import Engine, EngineError, EngineState, Record
from swe_rl.engine.server.monitor import TICK_S

SHORTEST_S = 0.25
LONGEST_S = 5.0
# The next sample comes after this share of the time so far.
_SHARE = 0.01


@contextlib.asynccontextmanager
async def watch_engines(
    engines: Sequence[Engine],
    record: Record,
    *,
    step: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Samples while the block runs, and once at its end. Event `engines`: `step`, and `load_of` every
    engine by name.
    """
    watching = asyncio.get_running_loop().create_task(_sample_loads(engines, record, step, clock, sleep))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _sample_loads(
    engines: Sequence[Engine],
    record: Record,
    step: int | None,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    started_s = clock()
    written = None
    try:
        while True:
            written = _write_loads(engines, record, step, written)
            await sleep(interval_s(clock() - started_s))
    finally:
        _write_loads(engines, record, step, written)


def interval_s(elapsed_s: float) -> float:
    """Returns the seconds until the next sample."""
    return min(LONGEST_S, max(SHORTEST_S, _SHARE * elapsed_s))


_Loads = dict[str, dict[str, float]]


def _write_loads(engines: Sequence[Engine], record: Record, step: int | None, before: _Loads | None) -> _Loads:
    loads = {engine.name: load_of(engine) for engine in engines}
    if loads != before:
        record("engines", {**({} if step is None else {"step": step}), "engines": loads})
    return loads


def load_of(engine: Engine) -> dict[str, float]:
    """Returns `running` and `waiting` requests, the share `kv` of the cache that they hold, and
    `preemptions` so far.
    """
    stats = engine.stats()
    share = 0.0
    if stats.kv_capacity_tokens:
        share = stats.kv_used_tokens / stats.kv_capacity_tokens
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "kv": round(min(1.0, share), 4),
        "preemptions": stats.preemptions_total,
    }


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
    """Never returns. Raises NoEngineError once every engine has been lost for `limit_s` without a break."""
    looked_s = clock()
    away_s = 0.0
    while True:
        await sleep(TICK_S)
        before_s = looked_s
        looked_s = clock()
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
