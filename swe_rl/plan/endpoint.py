"""Estimates what an evaluation asks of an endpoint: tokens and money of an attempt.

Invariants:
- Figures are means over attempts: a few long ones cost more than all that are typical.
- Nothing is taken for cached: each call reads the whole conversation once more, and costs it.
"""

from typing import Any

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.plan.duration import mean_context_tokens, mean_sampled_tokens, mean_turns


def attempt_figures(config: Config) -> dict[str, Any]:
    """Returns the calls, tokens and cost of an attempt on average, and how many of them the budgets pay for. Nothing
    without an endpoint."""
    engine = config.engine
    if engine.kind is not EngineKind.endpoint:
        return {}
    calls = mean_turns(config)
    sampled = calls * mean_sampled_tokens(config)
    read = calls * mean_context_tokens(config) - sampled
    cost = (read * engine.price_in + sampled * engine.price_out) / 1_000_000
    figures: dict[str, Any] = {
        "model_there": engine.model,
        "calls_per_attempt": round(calls, 1),
        "read_tokens_per_attempt": int(read),
        "sampled_tokens_per_attempt": int(sampled),
    }
    if cost:
        figures["cost_per_1000_attempts"] = float(f"{1000 * cost:.3g}")
    budgets = ((engine.budget, cost), (engine.budget_tokens, read + sampled))
    paid_attempts = [budget / of_one for budget, of_one in budgets if budget and of_one]
    if paid_attempts:
        figures["attempts_within_budget"] = int(min(paid_attempts))
    return figures


def knows(config: Config, section: str) -> bool:
    """Tells whether a plan can have this section: where an endpoint has the model, nobody here knows its memory."""
    return config.engine.kind is not EngineKind.endpoint or section not in ("memory", "cache")
