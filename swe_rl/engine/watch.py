"""What the engines have to do over time: samples of their load for `events.jsonl`.

Invariants:
- Often at first and ever more rarely: a sample after each hundredth of the time so far, never faster than
  `SHORTEST_S`, never slower than `LONGEST_S`. So a step of seconds is seen in detail and one of hours stays small.
- A sample that equals the one before is not written: what was last written holds until the next one, or the end.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from swe_rl.engine.loss import Record
from swe_rl.engine.protocol import Engine

SHORTEST_S = 0.25
LONGEST_S = 5.0
_SHARE = 0.01  # of the time so far


@contextlib.asynccontextmanager
async def watched(
    engines: Sequence[Engine],
    record: Record,
    *,
    step: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """While the block runs; a last sample at its end. Event `engines`: `step`, and `load_of` every engine by name."""
    watching = asyncio.get_running_loop().create_task(_watch(engines, record, step, clock, sleep))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(
    engines: Sequence[Engine],
    record: Record,
    step: int | None,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    started_s, written = clock(), None
    try:
        while True:
            written = _write(engines, record, step, written)
            await sleep(interval_s(clock() - started_s))
    finally:
        _write(engines, record, step, written)


def interval_s(elapsed_s: float) -> float:
    """Until the next sample."""
    return min(LONGEST_S, max(SHORTEST_S, _SHARE * elapsed_s))


_Loads = dict[str, dict[str, float]]


def _write(engines: Sequence[Engine], record: Record, step: int | None, before: _Loads | None) -> _Loads:
    loads = {engine.name: load_of(engine) for engine in engines}
    if loads != before:
        record("engines", {**({} if step is None else {"step": step}), "engines": loads})
    return loads


def load_of(engine: Engine) -> dict[str, float]:
    """`running`, `waiting`: requests; `kv`: the share of the cache that they hold; `preemptions`: so far."""
    stats = engine.stats()
    share = stats.kv_used_tokens / stats.kv_capacity_tokens if stats.kv_capacity_tokens else 0.0
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "kv": round(min(1.0, share), 4),
        "preemptions": stats.preemptions_total,
    }
