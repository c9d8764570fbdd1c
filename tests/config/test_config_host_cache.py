"""The tier of an engine's cache in its node's memory: one size for rules, plan, command line, router and simulation."""

from dataclasses import replace

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host
from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.compose import compose
from swe_rl.engine.make import options_of
from swe_rl.engine.vllm.arguments import ServerChoice, server_arguments
from swe_rl.job.plan import make_plan
from swe_rl.plan import host_cache
from swe_rl.plan.host_tier import host_tier, tier_sizes_gb
from swe_rl.router.simulation.balance import limits_of

HOST = Host(environment={}, file_exists=lambda _: False, folder_writable=lambda _: True, version=lambda _: "")
# The GPUs have room for 120,000 tokens, and each engine's trajectories for twelve times as many.
BASE = ["model=qwen3_14b", "layout=dp4", "hardware=h200x8", "engine.kv_cache_tokens=120000"]
LONG = ["rollout.max_trajectory_tokens=32768", "rollout.prompts_per_step=24", "rollout.n=8", "rollout.concurrency=180"]


def configured(*more):
    return compose([*BASE, *LONG, *more]).config


def flag_of(config):
    words = server_arguments(config, ServerChoice(0, 1, "m", devices="0"), options_of(config.engine))
    return float(words[words.index("--kv-offloading-size") + 1]) if "--kv-offloading-size" in words else 0.0


@pytest.mark.parametrize("stated", ["auto", "90", "0"])
def test_all_that_ask_get_the_same_size(stated):
    config = configured(f"engine.host_cache_gb={stated}")
    size_gb = host_cache.host_cache_gb(config)
    assert (size_gb > 0) == (stated != "0")
    assert flag_of(config) == pytest.approx(size_gb * 1e9 / 2**30, abs=1e-3)
    rows = host_cache.figures(config)
    assert rows.get("host_cache_gb_per_engine", 0) == size_gb
    tokens = int(size_gb * 1e9 / (2 * 40 * 8 * 128 * 2))
    assert host_tier(config).tokens == limits_of(config, 120_000).host_tokens == tokens
    assert size_gb == 0 or rows["host_cache_tokens_per_engine"] == tokens


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["trainer.offload_optimizer=true"],
        ["hardware.memory_gb=300"],
        ["hardware.memory_gb=64"],
        ["sandbox=docker", "sandbox.concurrency=64", "sandbox.memory_gb=8"],
        ["layout.engines=2", "layout.engine_tp=2"],
        ["engine.kv_cache_tokens=0"],
    ],
)
def test_what_auto_takes_is_refused_by_nothing(more):
    config = configured("engine.host_cache_gb=auto", *more)
    size_gb = host_cache.host_cache_gb(config)
    node = host_cache.node_memory(config)
    assert size_gb * node.engines <= min(node.spare_gb, node.there_gb / 2)
    assert size_gb == 0 or size_gb > host_cache.gpu_cache_gb(config)
    ids = {finding.rule_id for finding in check_config(replace(config), host=HOST)}
    assert not {rule_id for rule_id in ids if rule_id.startswith("host_cache")}
    stated = replace(config, engine=replace(config.engine, host_cache_gb=f"{size_gb:g}"))
    assert flag_of(stated) == flag_of(config)


def test_the_plan_shows_it():
    config = configured("engine.host_cache_gb=90")
    rows = make_plan(replace(config, job=replace(config.job, name=JobName.plan)))["cache"]
    assert host_cache.figures(config).items() <= rows.items() and rows["host_memory_pinned_gb_per_node"] == 360
    assert rows["oversubscription"] == round(host_cache.crowding(config), 2)


def test_what_others_keep_in_the_memory_is_not_the_tiers():
    whole = host_cache.node_memory(configured())
    assert host_cache.node_memory(configured("trainer.offload_optimizer=true")).spare_gb < whole.spare_gb - 100
    boxes = configured("sandbox=docker", "sandbox.concurrency=64", "sandbox.memory_gb=8")
    assert host_cache.node_memory(boxes).spare_gb == pytest.approx(whole.spare_gb - 64 * 8 + whole.sandboxes_gb)


def test_auto_takes_no_more_than_trajectories_fill():
    few = configured("engine.host_cache_gb=auto", "rollout.concurrency=8")
    assert host_cache.useful_gb(few) < host_cache.node_memory(few).most_gb
    assert host_cache.host_cache_gb(few) in (0.0, host_cache.useful_gb(few))


def test_somebody_elses_connector_is_left_alone():
    own = ["engine.host_cache_gb=auto", "engine.extra_arguments=[--kv-transfer-config,'{}']"]
    assert host_cache.host_cache_gb(configured(*own)) == 0


def test_servers_of_others_have_what_the_key_says():
    config = configured("engine.host_cache_gb=90")
    external = replace(config, engine=replace(config.engine, kind=EngineKind.external))
    assert host_cache.host_cache_gb(external) == 0
    assert host_tier(external).tokens == host_tier(config).tokens


def test_sizes_to_compare_are_more_than_the_gpus_hold():
    sizes_gb = tier_sizes_gb(configured("engine.host_cache_gb=90"))
    assert sizes_gb[0] == 0 and 90 in sizes_gb and sizes_gb == sorted(set(sizes_gb))
    assert tier_sizes_gb(compose().config) == []
