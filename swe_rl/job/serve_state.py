"""The live line of `job=serve`: who is there, what the engines do.

Invariants:
- No clock of its own; rates are over the time between two looks.
- What the progress bar fills with is the share of the engines' KV cache that is in use.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.engine.protocol import Engine
from swe_rl.logger.progress_state import ProgressState
from swe_rl.logger.progress_text import duration

_BAR = 100


class ServeState(ProgressState):
    def __init__(self, started_s: float) -> None:
        super().__init__(total_steps=_BAR)
        self._started_s = started_s
        self._seen: tuple[float, int] | None = None  # when, tokens sampled until then
        self._line = ""
        self.serving = False

    def look(self, engines: Sequence[Engine], router: Mapping[str, Any], now_s: float) -> bool:
        """Whether there is something new to show. `router`: its snapshot."""
        stats = [engine.stats() for engine in engines]
        capacity = sum(one.kv_capacity_tokens for one in stats)
        share = sum(one.kv_used_tokens for one in stats) / capacity if capacity else 0.0
        sampled = sum(one.sampled_tokens_total for one in stats)
        rate = self._rate(sampled, now_s)
        up = sum(bool(getattr(engine, "up", True)) for engine in engines)
        line = "  ".join(
            [
                f"{up}/{len(engines)} engines",
                f"{len(router.get('programs', ()))} programs",
                f"{sum(one.running for one in stats)} running",
                f"{sum(one.waiting for one in stats)} queued",
                f"{router.get('held_requests', router.get('held_programs', 0))} held",
                f"{rate:.0f} sampled tokens/s",
                f"{sampled:,} in all",
                f"KV {share:.0%}",
            ]
        )
        changed, self._line = line != self._line, line
        self.done_steps = round(_BAR * min(1.0, share))
        self.serving = True
        return changed

    def _rate(self, sampled: int, now_s: float) -> float:
        before, self._seen = self._seen, (now_s, sampled)
        if before is None or now_s <= before[0]:
            return 0.0
        return max(0, sampled - before[1]) / (now_s - before[0])

    def headline(self, now_s: float) -> str:
        if self.serving:
            return f"serving {duration(now_s - self._started_s)}  {self._line}"
        return "  ".join(f"{name} {duration(now_s - since_s)}" for name, since_s in self.phases[-1:]) or "starting"

    def collection(self, now_s: float) -> str | None:
        return None
