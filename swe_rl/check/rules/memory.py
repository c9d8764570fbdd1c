"""Rules of memory check the GPUs of engines and trainer, both on one GPU, and the engines' key-value cache.

Invariants:
- Facts come from conf/, sums from facts/memory.py; nothing here asks a machine.
- A message names the parts of the sum that it compares.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from swe_rl.check.findings import Finding, Host, error, error_if, rule_about, rule_between, warning
from swe_rl.config.choices import EngineKind, OptimizerState
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.facts import memory
from swe_rl.facts.concurrency import adapts_concurrency
from swe_rl.facts.memory import MOST_OF_A_HOST
from swe_rl.facts.server_arguments import with_command
from swe_rl.facts.sizes import (
    divisors_of,
    gpus_needed,
    gpus_there,
    num_replicas,
    replica_ranks,
    shares_gpus,
    trajectories_at_once,
    uses_no_gpu,
)
from swe_rl.facts.warm_start import trainer_config
from swe_rl.plan import host_cache

COLOCATED_MOST = 0.8  # a larger share leaves little for the trainer on the same GPUs
NARROWEST = f"trainer.optimizer_state={OptimizerState.int8}"
CROWDED = 2.0  # contexts under way may be so many times the cache's tokens


@rule_about(Part.engines)
def gpu_memory_share(config: Config, _: Host) -> Iterator[Finding]:
    share = config.engine.gpu_memory_utilization
    if shares_gpus(config) and share > COLOCATED_MOST:
        yield warning(
            "gpu_share",
            "engine.gpu_memory_utilization",
            "leaves little for the trainer on the same GPUs",
            "engine.gpu_memory_utilization=0.6",
        )


@rule_about(Part.trainer, Part.warm_start)
def trainer_memory(config: Config, _: Host) -> Iterator[Finding]:
    config = trainer_config(config)
    there = config.hardware.gpu_memory_gb
    gpus = config.layout.trainer_gpus
    needed = memory.trainer_gb_per_gpu(config)
    if not _knows_gpu_memory(config) or gpus == 0 or needed <= there:
        return
    states = memory.states_gb_per_gpu(config)
    parts = "weights, gradients and Adam states"
    if config.trainer.offload_optimizer:
        parts = "weights and gradients"
    micro_batch = _fitting_micro_batch(config)
    yield error(
        "trainer_memory",
        "trainer.max_tokens_per_micro_batch" if micro_batch else "layout.trainer_gpus",
        f"{config.model.name} needs {needed:.0f} GB on each trainer GPU ({parts} {states:.0f}, activations of "
        f"{memory.tokens_per_gpu(config)} tokens and the rest {needed - states:.0f}); {config.hardware.gpu_kind} has "
        f"{there:g}",
        _less_trainer_memory(config, micro_batch),
    )


def _trainer_fits(config: Config) -> bool:
    """Tells whether the trainer fits on the GPUs, and what is kept in the nodes' memory fits there."""
    there = config.hardware.memory_gb * config.hardware.nodes * MOST_OF_A_HOST
    kept = 0.0
    if config.trainer.offload_optimizer:
        kept = memory.offloaded_gb(config)
    return memory.trainer_gb_per_gpu(config) <= config.hardware.gpu_memory_gb and kept <= there


def _fitting_micro_batch(config: Config) -> int:
    """Returns the largest of half, a quarter, ... of the tokens that fits and holds a whole trajectory, or 0."""
    least = -(-config.rollout.max_trajectory_tokens // max(1, config.layout.sequence_parallel))
    tokens = memory.tokens_per_gpu(config)
    while tokens > least:
        tokens = max(tokens // 2, least)
        if _trainer_fits(_trainer_with(config, max_tokens_per_micro_batch=tokens)):
            return tokens
    return 0


def _less_trainer_memory(config: Config, micro_batch: int) -> str:
    """Returns the changes that help by themselves, the smallest first. No other rule refuses them."""
    trainer = config.trainer
    if micro_batch:
        ways = [f"trainer.max_tokens_per_micro_batch={micro_batch}"]
    else:
        ways = []
    if not trainer.activation_checkpointing and _trainer_fits(_trainer_with(config, activation_checkpointing=True)):
        ways.append("trainer.activation_checkpointing=true")
    if trainer.optimizer_state is not OptimizerState.int8 and _trainer_fits(_with_int8_state(config)):
        ways.append(NARROWEST)
    if not trainer.offload_optimizer and _trainer_fits(_trainer_with(config, offload_optimizer=True)):
        ways.append("trainer.offload_optimizer=true")
    there = config.hardware.gpu_memory_gb
    states = memory.states_gb_per_gpu(config)
    rest = memory.trainer_gb_per_gpu(config) - states
    if rest < there:
        ways += _more_ranks(config, int(states * replica_ranks(config.layout) // max(there - rest, 1.0)) + 1)
    return ", or ".join(ways) or "hardware with more GPUs or larger ones, and a layout with more trainer GPUs"


def _trainer_with(config: Config, **keys: Any) -> Config:
    return replace(config, trainer=replace(config.trainer, **keys))


def _more_ranks(config: Config, wanted: int) -> list[str]:
    """Returns options with which at least `wanted` ranks share the states, or none where there are too few GPUs."""
    layout = config.layout
    gpus = config.layout.trainer_gpus
    sizes = (size for size in divisors_of(gpus) if size >= wanted and size % layout.expert_parallel == 0)
    larger = min(sizes, default=None)
    if num_replicas(layout) > 1 and larger is not None:
        return [f"layout.shard_ranks={'null' if larger == gpus else larger}"]
    more = replace(config, layout=replace(layout, trainer_gpus=wanted))
    if gpus_needed(more) > gpus_there(config.hardware):
        return []
    return [f"{'layout.shard_ranks=null ' if num_replicas(layout) > 1 else ''}layout.trainer_gpus={wanted} or more"]


def _with_int8_state(config: Config) -> Config:
    return _trainer_with(config, optimizer_state=OptimizerState.int8)


@rule_about(Part.engines)
def engine_memory(config: Config, host: Host) -> Iterator[Finding]:
    config = with_command(config, host.environment)
    if not _knows_gpu_memory(config) or config.engine.kind != EngineKind.vllm:
        return
    budget = config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    if (needed := memory.engine_gb_per_gpu(config)) > budget:
        larger = f"layout.engine_tp={config.layout.engine_tp * 2}"
        if config.layout.engines > 1:
            # The same GPUs, so that the way out does not ask for more of them.
            larger = f"{larger} layout.engines={config.layout.engines // 2}"
        yield error(
            "engine_memory",
            "layout.engine_tp",
            f"weights and the keys and values of one full sequence need {needed:.0f} GB on each engine GPU; "
            f"{budget:.0f} GB are the engine's",
            f"{larger}, or a shorter rollout.max_trajectory_tokens",
        )


@rule_between(Part.trainer, Part.engines)
def colocated_memory(config: Config, _: Host) -> Iterator[Finding]:
    there = config.hardware.gpu_memory_gb
    if not _knows_gpu_memory(config) or not config.layout.colocated or config.layout.trainer_gpus == 0:
        return
    resting = memory.resting_gb_per_gpu(config)
    engine = there * config.engine.gpu_memory_utilization
    if config.engine.kind == EngineKind.vllm and resting + engine > there:
        fits = int((there - resting) / there * 20) / 20
        yield error(
            "colocated_memory",
            "engine.gpu_memory_utilization",
            f"while engines are awake ({engine:.0f} GB), the resting trainer ({resting:.0f} GB) stays on the "
            f"same {there:g} GB",
            f"engine.gpu_memory_utilization={fits:g}" if fits >= 0.3 else "trainer.offload_optimizer=true",
        )


@rule_about(Part.trainer, Part.warm_start)
def host_memory(config: Config, _: Host) -> Iterator[Finding]:
    config = trainer_config(config)
    there = config.hardware.memory_gb * config.hardware.nodes
    fits = memory.offloaded_gb(_with_int8_state(config)) <= there * MOST_OF_A_HOST
    narrower = f"{NARROWEST}, " if fits else ""
    if (needed := memory.offloaded_gb(config)) > there * MOST_OF_A_HOST > 0:
        yield error_if(needed > there)(
            "host_memory",
            "trainer.offload_optimizer",
            f"puts {needed:.0f} GB of master weights, gradients and moments into the nodes' memory; "
            f"hardware.memory_gb has {there:g} in all",
            f"{narrower}trainer.offload_optimizer=false with more trainer GPUs, or hardware with more memory",
        )


@rule_about(Part.engines)
def host_cache_value(config: Config, _: Host) -> Iterator[Finding]:
    """Finds texts that are no size, and sizes for engines that have no tier."""
    try:
        stated = host_cache.stated_gb(config)
    except ValueError:
        yield error(
            "host_cache",
            "engine.host_cache_gb",
            "must be auto or a number of GB, at least 0",
            "engine.host_cache_gb=auto, which takes what the nodes can spare, or 0 for none",
        )
        return
    if not stated or host_cache.may_have_tier(config) or config.engine.kind is EngineKind.external:
        return
    if config.engine.kind is EngineKind.embedded:
        reason = "is a tier of vLLM's cache; the embedded engine has none"
    elif uses_no_gpu(config.layout):
        reason = "needs GPUs: vLLM's CPU build has its cache in the host's memory already"
    else:
        reason = "keeps prefixes, and engine.prefix_caching=false keeps none"
    yield error("host_cache", "engine.host_cache_gb", reason, "engine.host_cache_gb=0")


@rule_about(Part.engines)
def host_cache_memory(config: Config, host: Host) -> Iterator[Finding]:
    """Compares what engines pin on a node with what the node has, and with the cache that they have on their GPUs."""
    config = with_command(config, host.environment)
    size = host_cache.host_cache_gb(config)
    if not size or config.engine.host_cache_gb.strip() == host_cache.AUTO:
        return
    node = host_cache.node_memory(config)
    pinned = size * node.engines
    fits = int(node.most_gb)
    if pinned > node.there_gb:
        yield error(
            "host_cache",
            "engine.host_cache_gb",
            f"{node.engines} engines of a node pin {pinned:.0f} GB; hardware.memory_gb has {node.there_gb:g}",
            f"engine.host_cache_gb={fits}" if fits else "engine.host_cache_gb=0",
        )
    elif size > node.most_gb:
        yield warning(
            "host_cache_crowded",
            "engine.host_cache_gb",
            f"{node.engines} engines of a node pin {pinned:.0f} GB; beside the trainer ({node.trainer_gb:.0f} GB), "
            f"sandboxes ({node.sandboxes_gb:.0f}) and the servers themselves ({node.processes_gb:.0f}) its "
            f"{node.there_gb:g} GB have room for {fits} an engine, as Linux lends half of them to files in memory",
            f"engine.host_cache_gb={fits}" if fits else "engine.host_cache_gb=0",
        )
    if _knows_gpu_memory(config) and size <= host_cache.gpu_cache_gb(config):
        yield warning(
            "host_cache_small",
            "engine.host_cache_gb",
            f"holds nothing new: the host has a copy of what the GPU has, and an engine's GPUs hold "
            f"{host_cache.gpu_cache_gb(config):.0f} GB of keys and values",
            "engine.host_cache_gb=auto, which then takes none, or a larger size",
        )


@rule_about(Part.engines)
def host_cache_start(config: Config, _: Host) -> Iterator[Finding]:
    pinning_s = host_cache.host_cache_start_s(config)
    if pinning_s > config.engine.start_timeout_s:
        yield error(
            "host_cache_start",
            "engine.start_timeout_s",
            f"to pin {host_cache.host_cache_gb(config):.0f} GB for each engine takes about {pinning_s:.0f} s by itself",
            f"engine.start_timeout_s={int(2 * pinning_s) + 300}",
        )


@rule_between(Part.engines, Part.rollouts)
def cache_crowded(config: Config, host: Host) -> Iterator[Finding]:
    config = with_command(config, host.environment)
    tokens = host_cache.held_tokens(config)
    if tokens == 0 or config.router.name not in ("default", "sticky_least_loaded") or adapts_concurrency(config):
        return
    if (ratio := host_cache.crowding(config)) > CROWDED:
        programs = trajectories_at_once(config) / max(1, config.layout.engines)
        fit = int(tokens * config.layout.engines / max(1, config.rollout.typical_trajectory_tokens))
        yield warning(
            "kv_crowded",
            "rollout.concurrency",
            f"{programs:.0f} trajectories of about {config.rollout.typical_trajectory_tokens} tokens on each engine "
            f"are {ratio:.1f} times its cache of {tokens} tokens: prompts will be computed again and again",
            f"router=tr or router=cap, or rollout.concurrency={max(1, fit)}",
        )


def _knows_gpu_memory(config: Config) -> bool:
    return not uses_no_gpu(config.layout) and config.hardware.gpu_memory_gb > 0
