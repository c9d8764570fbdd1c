"""Counts what an endpoint was asked for: tokens and money, by call, in a file that resumed starts go on with.

Invariants:
- A call is in the file before its reply is handed on; what a killed run has paid for counts in the next start.
- A call that was sent and has no reply may be charged, too. What it may cost is an estimate, which is kept apart from
  what the endpoint counted. Budgets hold for both together.
- Budgets hold for the run, with all its starts. Calls that are under way when a budget is spent are still counted.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.question import Usage
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Holds what a million tokens cost, in any currency."""

    read: float = 0.0
    sampled: float = 0.0
    cached: float = 0.0

    @classmethod
    def of(cls, engine: EngineConfig) -> Self:
        cached = engine.price_in if engine.price_cached is None else engine.price_cached
        return cls(engine.price_in, engine.price_out, cached)

    def cost(self, usage: Usage) -> float:
        computed = max(0, usage.prompt_tokens - usage.cached_tokens)
        read = computed * self.read + usage.cached_tokens * self.cached
        return (read + usage.sampled_tokens * self.sampled) / _MILLION


class Spending:
    """Adds up the calls of a run. Its file has a line for each of them. Raises DiskError."""

    def __init__(self, path: Path, prices: Prices, *, budget: float = 0.0, budget_tokens: int = 0) -> None:
        self.calls = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.sampled_tokens = 0
        self.cost = 0.0
        # These have no reply, and may be charged.
        self.lost_calls = 0
        self.lost_tokens = 0
        self.lost_cost = 0.0
        self._prices = prices
        self._budget = budget
        self._budget_tokens = budget_tokens
        self._writer = JsonlWriter(path)
        for line in read_jsonl(path):
            usage = Usage(line["prompt_tokens"], line["sampled_tokens"], line["cached_tokens"])
            # Older files have answered calls alone.
            self._add(usage, line["cost"], lost=line.get("lost", False))

    def note(self, session_id: str, usage: Usage, seconds: float) -> None:
        """Counts a call that the endpoint answered, with a reply or not. Raises DiskError."""
        self._note(session_id, usage, seconds, lost=False)

    def note_lost(self, session_id: str, prompt_tokens: int, most_tokens: int, seconds: float) -> None:
        """Counts a call that was sent and whose end is not known: it timed out, broke off, was cancelled, or has an
        answer that cannot be read. It is taken for a call of the usual length, of at most `most_tokens`. Raises
        DiskError."""
        sampled_tokens = most_tokens
        if self.calls:
            sampled_tokens = min(most_tokens, round(self.sampled_tokens / self.calls))
        self._note(session_id, Usage(prompt_tokens, sampled_tokens, estimated=True), seconds, lost=True)

    def _note(self, session_id: str, usage: Usage, seconds: float, *, lost: bool) -> None:
        cost = self._prices.cost(usage)
        self._writer.append(
            {
                "time": round(time.time(), 3),
                "session": session_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "sampled_tokens": usage.sampled_tokens,
                "estimated": usage.estimated,
                "lost": lost,
                "cost": cost,
                "seconds": round(seconds, 3),
            }
        )
        self._add(usage, cost, lost=lost)

    def exhausted(self) -> str:
        """Says which budget is spent, or returns an empty text."""
        tokens = self.prompt_tokens + self.sampled_tokens + self.lost_tokens
        cost = self.cost + self.lost_cost
        calls = f"{self.calls} calls"
        if self.lost_calls:
            calls += f" and an estimate for {self.lost_calls} without a reply"
        if self._budget and cost >= self._budget:
            return f"engine.budget={self._budget:g} is spent ({cost:.6g} for {calls})"
        if self._budget_tokens and tokens >= self._budget_tokens:
            return f"engine.budget_tokens={self._budget_tokens} is spent ({tokens} tokens in {calls})"
        return ""

    def to_record(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "sampled_tokens": self.sampled_tokens,
            "cost": self.cost,
            "lost_calls": self.lost_calls,
            "lost_tokens": self.lost_tokens,
            "lost_cost": self.lost_cost,
        }

    def close(self) -> None:
        self._writer.close()

    def _add(self, usage: Usage, cost: float, *, lost: bool) -> None:
        if lost:
            self.lost_calls += 1
            self.lost_tokens += usage.tokens
            self.lost_cost += cost
            return
        self.calls += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.sampled_tokens += usage.sampled_tokens
        self.cost += cost
