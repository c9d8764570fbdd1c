"""This module says what a router has to know of the tier of an engine's cache in the host's memory: how much fits, and
what it costs to bring a token back or to compute it.

Invariants:
- The size is that of plan/host_cache, and the times are those of plan/engine_speed, which the simulation has as well.
"""

from dataclasses import dataclass, replace

from swe_rl.config.choices import JobName
from swe_rl.config.schema import Config
from swe_rl.facts.memory import cached_token_bytes
from swe_rl.plan.engine_speed import SpeedError, speed_of
from swe_rl.plan.host_cache import (
    gpu_cache_gb,
    host_cache_gb,
    host_cache_tokens,
    may_have_tier,
    node_memory,
)


@dataclass(frozen=True, slots=True)
class HostTier:
    """Describes an engine's tier of cache in the host's memory. A time of 0 is not known."""

    tokens: int = 0
    copy_token_s: float = 0.0
    prefill_token_s: float = 0.0


def host_tier(config: Config, tokens: int | None = None) -> HostTier:
    """Returns the tier of each engine, or one of `tokens`. Its times follow from the hardware's figures, if known."""
    if tokens is None:
        size = host_cache_tokens(config)
    else:
        size = tokens
    try:
        speed = speed_of(config.model, config.hardware, config.layout)
    except SpeedError:
        return HostTier(size)
    return HostTier(size, speed.copy_s, speed.token_s)


def tier_sizes_gb(config: Config) -> list[float]:
    """Returns sizes to compare, ascending: none, the configured one, and half and all of what a node can spare. Sizes
    that hold nothing more than the GPUs are left out."""
    of_training = replace(config, job=replace(config.job, name=JobName.train))
    if not may_have_tier(of_training):
        return []
    most = float(int(node_memory(of_training).most_gb))
    sizes = {host_cache_gb(of_training), most // 2, most}
    return [0.0, *sorted(size for size in sizes if size > gpu_cache_gb(config))]


def sized_tier(config: Config, size_gb: float) -> HostTier:
    """Returns a tier of that size."""
    return host_tier(config, int(size_gb * 1e9 / cached_token_bytes(config)))
