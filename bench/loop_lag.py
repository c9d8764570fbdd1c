"""How late an event loop wakes up: what it adds to everybody's wait."""

import asyncio
import time

from swe_rl.router.simulation.outcome import percentile

_PERIOD_S = 0.05


class LoopLag:
    """Measures from its making to `close`, in the running loop."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._task = asyncio.ensure_future(self._measure())

    async def _measure(self) -> None:
        while True:
            due_s = time.monotonic() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            self._late_s.append(time.monotonic() - due_s)

    def take(self) -> dict[str, float]:
        """Of the time since it was last taken."""
        late_s, self._late_s = sorted(self._late_s), []
        return {
            "loop_lag_p50_ms": round(1000 * percentile(late_s, 50), 2),
            "loop_lag_p99_ms": round(1000 * percentile(late_s, 99), 2),
            "loop_lag_max_ms": round(1000 * late_s[-1], 2) if late_s else 0.0,
        }

    def close(self) -> None:
        self._task.cancel()
