"""Where `rollout.concurrency=auto` begins, and between which numbers it stays.

Invariants:
- The start is a fourth more than what the engines' caches hold of typical trajectories, in the host's memory too. The
  plan shows it, and the run begins with it.
- Each engine gets at least one trajectory, and there are no more than the configuration could ever have at once.
"""

from swe_rl.config.schema import Config
from swe_rl.facts.concurrency import Bounds, adapts_concurrency
from swe_rl.facts.sizes import trajectories_under_way, uses_no_gpu
from swe_rl.plan.host_cache import held_tokens

# A cache that is a fourth too small loses few prefixes: not all programs are grown up at once. Places that are missing
# cost more, because a step then ends with a second, small wave of trajectories. In simulations of 80 programs a start
# with what fits had 0.82 of the tokens/s of all at once where the cache was just too small.
START_SHARE = 1.25


def bounds_of(config: Config) -> Bounds:
    """Returns the bounds. Where the size of the cache is not known, it starts at the most."""
    engines = max(1, config.layout.engines, len(config.engine.urls))
    most = trajectories_under_way(config)
    least = min(engines, most)
    fitting = _held_tokens(config) * engines / max(1, config.rollout.typical_trajectory_tokens)
    if fitting:
        start = min(most, max(least, int(START_SHARE * fitting)))
    else:
        start = most
    return Bounds(least, most, start)


def _held_tokens(config: Config) -> int:
    """Returns how many tokens an engine holds, or 0 if that is not known. Without a GPU these are its sequences."""
    if uses_no_gpu(config.layout):
        return config.engine.max_num_seqs * config.engine.max_model_len
    return held_tokens(config)


def figures(config: Config) -> dict[str, int]:
    """Returns what the plan says of it, or nothing for a number that stays."""
    if not adapts_concurrency(config):
        return {}
    bounds = bounds_of(config)
    return {
        "concurrency_at_least": bounds.least,
        "concurrency_at_first": bounds.start,
        "concurrency_at_most": bounds.most,
    }
