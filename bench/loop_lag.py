"""How late an event loop wakes up: what it adds to everybody's wait.

Invariants:
- `own` is the lateness less the time in which the loop's thread was ready to run and the machine gave it no processor:
  on a shared machine the difference is somebody else's. Where the kernel does not tell (Linux does), both are equal.
"""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

from swe_rl.router.simulation.outcome import percentile

_PERIOD_S = 0.05


class LoopLag:
    """Measures from its making to `close`, in the running loop."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._own_s: list[float] = []
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._task = asyncio.ensure_future(self._measure())

    async def _measure(self) -> None:
        while True:
            due_s, waited_s = time.monotonic() + _PERIOD_S, self._waited_s()
            await asyncio.sleep(_PERIOD_S)
            late_s = time.monotonic() - due_s
            self._late_s.append(late_s)
            self._own_s.append(max(0.0, late_s - (self._waited_s() - waited_s)))

    def take(self) -> dict[str, float]:
        """Of the time since it was last taken."""
        late_s, self._late_s = sorted(self._late_s), []
        own_s, self._own_s = sorted(self._own_s), []
        return {
            "loop_lag_p50_ms": round(1000 * percentile(late_s, 50), 2),
            "loop_lag_p99_ms": round(1000 * percentile(late_s, 99), 2),
            "loop_lag_max_ms": round(1000 * late_s[-1], 2) if late_s else 0.0,
            "loop_lag_own_p50_ms": round(1000 * percentile(own_s, 50), 2),
            "loop_lag_own_p99_ms": round(1000 * percentile(own_s, 99), 2),
            "loop_lag_own_max_ms": round(1000 * own_s[-1], 2) if own_s else 0.0,
        }

    def close(self) -> None:
        self._task.cancel()

    def _waited_s(self) -> float:
        """For a processor, so far."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(self._schedstat.read_text(encoding="ascii").split()[1]) / 1e9
        return 0.0
