"""Why a router did what it did: the latest decisions, with the numbers that they were made on.

Invariants:
- Bounded: the log keeps the latest `limit` decisions and counts all of them by kind and reason.
"""

from collections import Counter, deque
from dataclasses import asdict, dataclass

LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """`load_tokens` and `capacity_tokens` are the engine's before the decision, `tokens` the program's; `held`: the
    programs that wait. All 0 where a router does not keep them."""

    now_s: float
    event: str
    program_id: str
    decision: str
    engine: str | None
    reason: str
    tokens: int = 0
    load_tokens: int = 0
    capacity_tokens: int = 0
    held: int = 0


class DecisionLog:
    def __init__(self, limit: int = LIMIT) -> None:
        self._latest: deque[Decision] = deque(maxlen=limit)
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, decision: Decision) -> None:
        self._latest.append(decision)
        self.counts[decision.decision, decision.reason] += 1

    def latest(self) -> list[Decision]:
        """Oldest first."""
        return list(self._latest)

    def snapshot(self) -> dict[str, object]:
        counts = {f"{decision}: {reason}": number for (decision, reason), number in sorted(self.counts.items())}
        return {"decision_counts": counts, "decisions": [asdict(one) for one in self._latest]}
