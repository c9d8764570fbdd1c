"""Makes the endpoint that a configuration names."""

from collections.abc import Callable
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.endpoint.spending import Prices, Spending
from swe_rl.engine.engine import SamplingParams

# The run's folder has this file: a line for each answered call.
CALLS_FILE = "endpoint_calls.jsonl"


def make_endpoint(config: Config, run_folder: Path, say: Callable[[str], None]) -> EndpointEngine:
    """Returns the endpoint, not started. `say` hears what a user should know. Raises DiskError."""
    engine = config.engine
    rollout = config.rollout
    spending = Spending(
        run_folder / CALLS_FILE, Prices.of(engine), budget=engine.budget, budget_tokens=engine.budget_tokens
    )
    params = SamplingParams(
        rollout.max_turn_tokens,
        rollout.eval_temperature,
        rollout.top_p,
        rollout.top_k,
        seed=config.trainer.seed,
        min_p=rollout.min_p,
    )
    return EndpointEngine(engine, spending, say, params=params, patience_s=rollout.max_wait_s)
