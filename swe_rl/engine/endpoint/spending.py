"""Counts what an endpoint was asked for: tokens and money, by call, in a file that resumed starts go on with.

Invariants:
- A call is in the file before its reply is handed on; what a killed run has paid for counts in the next start.
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
        self._prices = prices
        self._budget = budget
        self._budget_tokens = budget_tokens
        self._writer = JsonlWriter(path)
        for line in read_jsonl(path):
            usage = Usage(line["prompt_tokens"], line["sampled_tokens"], line["cached_tokens"])
            self._add(usage, line["cost"])

    def note(self, session_id: str, usage: Usage, seconds: float) -> None:
        """Counts an answered call. Raises DiskError."""
        cost = self._prices.cost(usage)
        self._writer.append(
            {
                "time": round(time.time(), 3),
                "session": session_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "sampled_tokens": usage.sampled_tokens,
                "estimated": usage.estimated,
                "cost": cost,
                "seconds": round(seconds, 3),
            }
        )
        self._add(usage, cost)

    def exhausted(self) -> str:
        """Says which budget is spent, or returns an empty text."""
        tokens = self.prompt_tokens + self.sampled_tokens
        if self._budget and self.cost >= self._budget:
            return f"engine.budget={self._budget:g} is spent ({self.cost:.6g} for {self.calls} calls)"
        if self._budget_tokens and tokens >= self._budget_tokens:
            return f"engine.budget_tokens={self._budget_tokens} is spent ({tokens} tokens in {self.calls} calls)"
        return ""

    def to_record(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "sampled_tokens": self.sampled_tokens,
            "cost": self.cost,
        }

    def close(self) -> None:
        self._writer.close()

    def _add(self, usage: Usage, cost: float) -> None:
        self.calls += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.sampled_tokens += usage.sampled_tokens
        self.cost += cost
