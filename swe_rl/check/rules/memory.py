"""Rules of GPU memory: engines, trainer, both on one GPU; and of the engines' key-value cache.

Invariants:
- Facts come from conf/, sums from plan/memory.py; nothing here asks a machine.
- A message names the parts of the sum that it compares.
"""

from collections.abc import Iterator
from dataclasses import replace

from swe_rl.check.findings import Finding, Host, about, between, error, warning
from swe_rl.config.choices import EngineKind, OptimizerState
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.plan import memory
from swe_rl.plan.sizes import (
    commanded,
    divisors,
    replica_ranks,
    replicas,
    shares_gpus,
    trajectories_at_once,
    uses_no_gpu,
)
from swe_rl.plan.warm_start import trained

COLOCATED_MOST = 0.8
MOST_OF_A_HOST = 0.85  # engines, sandboxes and files take the rest: 236 GB of 270 were too much
NARROWEST = f"trainer.optimizer_state={OptimizerState.int8}"
CROWDED = 2.0  # contexts under way over the cache's tokens


@about(Part.engines)
def gpu_memory_share(config: Config, _: Host) -> Iterator[Finding]:
    share = config.engine.gpu_memory_utilization
    if shares_gpus(config) and share > COLOCATED_MOST:
        yield warning(
            "gpu_share",
            "engine.gpu_memory_utilization",
            "leaves little for the trainer on the same GPUs",
            "engine.gpu_memory_utilization=0.6",
        )


@about(Part.trainer, Part.warm_start)
def trainer_memory(config: Config, _: Host) -> Iterator[Finding]:
    config = trained(config)
    there, gpus = config.hardware.gpu_memory_gb, config.layout.trainer_gpus
    needed = memory.trainer_gb_per_gpu(config)
    if not _known(config) or gpus == 0 or needed <= there:
        return
    states, rest = memory.states_gb_per_gpu(config), needed - memory.states_gb_per_gpu(config)
    parts = "weights and gradients" if config.trainer.offload_optimizer else "weights, gradients and Adam states"
    yield error(
        "trainer_memory",
        "layout.trainer_gpus",
        f"{config.model.name} needs {needed:.0f} GB on each trainer GPU ({parts} {states:.0f}, activations of "
        f"{memory.tokens_per_gpu(config)} tokens and the rest {rest:.0f}); {config.hardware.gpu_kind} has {there:g}",
        _less_trainer_memory(config, states, rest),
    )


def _less_trainer_memory(config: Config, states: float, rest: float) -> str:
    """The smallest change that helps, by the part that is too large."""
    there = config.hardware.gpu_memory_gb
    if rest < there and states > rest and not config.trainer.offload_optimizer:
        more = int(states * replica_ranks(config.layout) // max(there - rest, 1.0)) + 1
        fits = memory.states_gb_per_gpu(_narrowest(config)) + rest <= there
        narrower = f"{NARROWEST}, " if fits else ""
        return f"{narrower}trainer.offload_optimizer=true, or {_more_ranks(config, more)}"
    if not config.trainer.activation_checkpointing:
        return "trainer.activation_checkpointing=true"
    return "a smaller trainer.max_tokens_per_micro_batch with a larger layout.sequence_parallel, or more trainer GPUs"


def _more_ranks(config: Config, wanted: int) -> str:
    """Where `wanted` ranks at least would have to share the states."""
    gpus = config.layout.trainer_gpus
    if replicas(config.layout) < 2:
        return f"layout.trainer_gpus={wanted} or more"
    sizes = (size for size in divisors(gpus) if size >= wanted and size % config.layout.expert_parallel == 0)
    larger = min(sizes, default=None)
    if larger is None:
        return f"layout.shard_ranks=null layout.trainer_gpus={wanted} or more"
    return f"layout.shard_ranks={'null' if larger == gpus else larger}"


def _narrowest(config: Config) -> Config:
    return replace(config, trainer=replace(config.trainer, optimizer_state=OptimizerState.int8))


@about(Part.engines)
def engine_memory(config: Config, host: Host) -> Iterator[Finding]:
    config = commanded(config, host.environment)
    if not _known(config) or config.engine.kind != EngineKind.vllm:
        return
    budget = config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    if (needed := memory.engine_gb_per_gpu(config)) > budget:
        yield error(
            "engine_memory",
            "layout.engine_tp",
            f"weights and the keys and values of one full sequence need {needed:.0f} GB on each engine GPU; "
            f"{budget:.0f} GB are the engine's",
            f"layout.engine_tp={config.layout.engine_tp * 2}, or a shorter rollout.max_trajectory_tokens",
        )


@between(Part.trainer, Part.engines)
def colocated_memory(config: Config, _: Host) -> Iterator[Finding]:
    there = config.hardware.gpu_memory_gb
    if not _known(config) or not config.layout.colocated or config.layout.trainer_gpus == 0:
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


@about(Part.trainer, Part.warm_start)
def host_memory(config: Config, _: Host) -> Iterator[Finding]:
    config = trained(config)
    there = config.hardware.memory_gb * config.hardware.nodes
    fits = memory.offloaded_gb(_narrowest(config)) <= there * MOST_OF_A_HOST
    narrower = f"{NARROWEST}, " if fits else ""
    if (needed := memory.offloaded_gb(config)) > there * MOST_OF_A_HOST > 0:
        yield (error if needed > there else warning)(
            "host_memory",
            "trainer.offload_optimizer",
            f"puts {needed:.0f} GB of master weights, gradients and moments into the nodes' memory; "
            f"hardware.memory_gb has {there:g} in all",
            f"{narrower}trainer.offload_optimizer=false with more trainer GPUs, or hardware with more memory",
        )


@between(Part.engines, Part.rollouts)
def cache_crowded(config: Config, host: Host) -> Iterator[Finding]:
    config = commanded(config, host.environment)
    tokens = memory.kv_tokens_per_engine(config)
    if tokens == 0 or config.router.name not in ("default", "sticky_least_loaded"):
        return
    if (ratio := memory.crowding(config)) > CROWDED:
        programs = trajectories_at_once(config) / max(1, config.layout.engines)
        fit = int(tokens * config.layout.engines / max(1, config.rollout.typical_trajectory_tokens))
        yield warning(
            "kv_crowded",
            "rollout.concurrency",
            f"{programs:.0f} trajectories of about {config.rollout.typical_trajectory_tokens} tokens on each engine "
            f"are {ratio:.1f} times its cache of {tokens} tokens: prompts will be computed again and again",
            f"router=tr or router=cap, or rollout.concurrency={max(1, fit)}",
        )


def _known(config: Config) -> bool:
    return not uses_no_gpu(config.layout) and config.hardware.gpu_memory_gb > 0
