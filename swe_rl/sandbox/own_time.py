"""A limit on somebody's own time: what they waited for others does not count.

Invariants:
- Time that is waited right now does not count either, and never ends the wait for what has it.
- Beyond its limit nothing runs for longer than `_GRAIN_S`, unless it waits.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

Waited = Callable[[], float]  # seconds so far that were waited for others; only grows
_GRAIN_S = 0.05


def no_wait() -> float:
    return 0.0


async def ends_within(
    work: "asyncio.Future[Any]",
    limit_s: float,
    waited: Waited = no_wait,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether `work` is done before its own time is over. It is left alone, also on cancellation."""
    began_s, before_s = clock(), waited()
    left_s = limit_s
    while not work.done() and left_s > 0:
        await asyncio.wait({work}, timeout=left_s)
        left_s = limit_s - (clock() - began_s) + (waited() - before_s)
        left_s = max(left_s, _GRAIN_S) if left_s > 0 else 0.0
    return work.done()
