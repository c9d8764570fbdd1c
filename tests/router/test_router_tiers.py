"""Two tiers of cache: what the host's memory holds, and what a program-aware router makes of it."""

from dataclasses import dataclass
from functools import cache

import pytest

from swe_rl.config.schema import ModelConfig, RouterConfig
from swe_rl.plan.engine_speed import engine_speed
from swe_rl.plan.host_tier import HostTier as RouterTier
from swe_rl.router.core import EngineLoad
from swe_rl.router.engine_book import Capacity
from swe_rl.router.make import make_router
from swe_rl.router.simulation.blocks import SimulatedTier
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.simulate import simulate_router
from swe_rl.router.simulation.workload import SimulatedProgram, SimulatedTurn, Workload

QWEN3_14B = ModelConfig(
    num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=8, head_dim=128, params_b=14.8, active_params_b=14.8
)
H200 = engine_speed(QWEN3_14B, 989, 4800)
GPU_TOKENS = 60_000


@dataclass
class Named:
    name: str


def load(programs):
    """Programs of eight turns whose tools take from one to four seconds; each ends with about 9,600 tokens."""
    made = []
    for number in range(programs):
        turns = [SimulatedTurn(2400 if not turn else 800, 100, 1.0 + (number + turn) % 4) for turn in range(8)]
        made.append(SimulatedProgram(f"p{number}", f"g{number}", tuple(turns), 0.1 * number, 0.0, 800))
    return Workload((tuple(made),), programs)


@cache
def outcome(router, programs, host_tokens, *, copy_s=H200.copy_s):
    tier = RouterTier(host_tokens, copy_s, H200.token_s)
    config = RouterConfig(name=router)
    made = make_router(config, [Named("e0")], capacity_tokens=GPU_TOKENS, max_num_seqs=256, host=tier)
    return simulate_router(made, load(programs), H200, EngineLimits(GPU_TOKENS, 256, host_tokens=host_tokens))


def test_a_tier_that_holds_everything_leaves_nothing_to_a_router():
    plain = outcome("default", 24, 400_000)
    aware = outcome("tr", 24, 400_000)
    assert aware.pauses == aware.forced == 0
    assert aware.makespan_s == pytest.approx(plain.makespan_s)
    assert aware.cached_share == pytest.approx(plain.cached_share)
    assert plain.sampled_tokens_per_s > 1.2 * outcome("default", 24, 0).sampled_tokens_per_s


def test_beyond_both_tiers_programs_wait_for_their_turn():
    plain = outcome("default", 60, 150_000)
    aware = outcome("tr", 60, 150_000)
    assert aware.pauses > 0
    assert aware.sampled_tokens_per_s > 1.15 * plain.sampled_tokens_per_s
    assert aware.sampled_tokens_per_s > 1.15 * outcome("tr", 60, 0).sampled_tokens_per_s


def test_a_tier_no_larger_than_the_gpus_cache_is_none():
    assert outcome("tr", 12, GPU_TOKENS).makespan_s == pytest.approx(outcome("tr", 12, 0).makespan_s, rel=0.05)


def load_of(host_tokens=0, waiting=0, preemptions=0):
    return EngineLoad("e", 4, waiting, 1000, 1000, preemptions, host_tokens)


def test_the_larger_tier_counts_and_waiting_is_no_shortage_there():
    capacity = Capacity(500)
    capacity.observe(load_of(host_tokens=5000), 1000)
    assert capacity.reaches_host and capacity.tokens == 5000 and capacity.stretch == 5
    capacity.observe(load_of(waiting=9, preemptions=3), 1000)
    assert capacity.tokens == 5000 and capacity.waiting == 9


def test_a_copy_that_takes_longer_than_computing_is_not_counted():
    capacity = Capacity(1000, 5000, copy_pays=False)
    assert not capacity.reaches_host and capacity.tokens == 1000 and capacity.stretch == 1
    slow = outcome("tr", 60, 150_000, copy_s=2 * H200.token_s)
    assert slow.pauses > outcome("tr", 60, 150_000).pauses


def test_what_was_used_least_lately_leaves_from_its_end():
    tier = SimulatedTier(10)
    tier.keep(("a", ""), 6)
    tier.keep(("b", ""), 4)
    tier.keep(("a", ""), 6)
    tier.keep(("c", ""), 3)
    assert (tier.resident(("a", "")), tier.resident(("b", "")), tier.resident(("c", ""))) == (6, 1, 3)
    assert tier.held == 10
    tier.keep(("a", ""), 2)
    assert tier.resident(("a", "")) == 6
    tier.flush()
    assert tier.held == tier.resident(("a", "")) == 0


def test_no_tier_keeps_nothing():
    tier = SimulatedTier(0)
    tier.keep(("a", ""), 6)
    assert tier.held == 0


def long_prefixes(programs):
    """Programs of ten turns that end with about 31,000 tokens, and differ in length."""
    made = []
    for number in range(programs):
        turns = [
            SimulatedTurn(2900 if turn else 3500, 150, 1.0 + (3 * number + turn) % 4) for turn in range(8 + number % 5)
        ]
        made.append(SimulatedProgram(f"p{number}", f"g{number}", tuple(turns), 0.1 * number, 0.0, 800))
    return Workload((tuple(made),), programs)


def speed_of_router(name, cap=0):
    config = RouterConfig(name=name, max_programs_per_engine=cap)
    tier = RouterTier(150_000, H200.copy_s, H200.token_s)
    made = make_router(config, [Named("e0")], capacity_tokens=GPU_TOKENS, max_num_seqs=256, host=tier)
    limits = EngineLimits(GPU_TOKENS, 256, host_tokens=150_000)
    return simulate_router(made, long_prefixes(40), H200, limits).sampled_tokens_per_s


def test_with_long_prefixes_beyond_the_tier_it_is_near_the_best_cap_that_was_found_by_trying():
    """It admits what will fit when it has grown: who is paused with a long prefix has to compute all of it again."""
    best = max(speed_of_router("cap", cap) for cap in (3, 4, 5, 6, 8, 12))
    aware = speed_of_router("tr")
    assert aware >= 0.97 * best
    assert aware >= 1.2 * speed_of_router("default")
