"""The loss of an engine and its return, told to a person and to `events.jsonl`.

Invariants:
- What a loss has cost is in both: requests that begin anew, the work on them, and the time until the engine serves
  again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Record = Callable[[str, Mapping[str, object]], None]  # an event's name and fields


@dataclass(frozen=True, slots=True)
class Loss:
    """Requests that a lost server left undone, and the seconds that they had been under way, added up."""

    requests: int = 0
    work_s: float = 0.0

    def __str__(self) -> str:
        if not self.requests:
            return "no request was in flight"
        noun = "request begins" if self.requests == 1 else "requests begin"
        return f"{self.requests} {noun} anew ({self.work_s:.1f} s of work lost)"


@dataclass(slots=True)
class LossTeller:
    """Of one engine. Events: `engine_lost` (engine, reason, requests, work_s) and `engine_back` (engine, away_s)."""

    engine: str
    say: Callable[[str], None]
    record: Record
    clock: Callable[[], float] = time.monotonic
    _lost_s: float = field(default=0.0, init=False)

    def lost(self, reason: str, loss: Loss, then: str) -> None:
        """`then`: what is done about it."""
        self._lost_s = self.clock()
        self.say(f"{reason}; {loss}; {then}")
        fields = {"engine": self.engine, "reason": reason, "requests": loss.requests, "work_s": round(loss.work_s, 3)}
        self.record("engine_lost", fields)

    def back(self) -> None:
        away_s = self.clock() - self._lost_s
        self.say(f"{self.engine} serves again; it was away for {away_s:.1f} s")
        self.record("engine_back", {"engine": self.engine, "away_s": round(away_s, 3)})
