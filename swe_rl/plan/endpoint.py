"""Estimates what an evaluation asks of an endpoint: tokens and money of an attempt.

Invariants:
- Nothing is taken for cached: each call reads the whole conversation once more, and costs it.
"""

from typing import Any

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config


def attempt_figures(config: Config) -> dict[str, Any]:
    """Returns the calls, tokens and cost of a typical attempt, and how many of them the budget pays for. Nothing
    without an endpoint."""
    engine = config.engine
    if engine.kind is not EngineKind.endpoint:
        return {}
    rollout = config.rollout
    calls = min(rollout.workload.turns[0], float(rollout.max_turns))
    turn_tokens = min(rollout.workload.sampled_tokens[0], float(rollout.max_turn_tokens))
    sampled = min(calls * turn_tokens, float(rollout.max_trajectory_tokens))
    read = calls * min(rollout.typical_trajectory_tokens, rollout.max_trajectory_tokens) / 2
    cost = (read * engine.price_in + sampled * engine.price_out) / 1_000_000
    figures: dict[str, Any] = {
        "model_there": engine.model,
        "calls_per_attempt": round(calls, 1),
        "read_tokens_per_attempt": int(read),
        "sampled_tokens_per_attempt": int(sampled),
    }
    if cost:
        figures["cost_per_1000_attempts"] = float(f"{1000 * cost:.3g}")
    if engine.budget and cost:
        figures["attempts_within_budget"] = int(engine.budget / cost)
    return figures


def knows(config: Config, section: str) -> bool:
    """Tells whether a plan can have this section: where an endpoint has the model, nobody here knows its memory."""
    return config.engine.kind is not EngineKind.endpoint or section not in ("memory", "cache")
