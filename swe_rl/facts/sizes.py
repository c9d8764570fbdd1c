"""This module has numbers that follow from a configuration: GPUs, ranks, nodes and the way of new weights between them;
trajectories, tokens, instances, images.

Invariants:
- Pure arithmetic over the schema; rules, plan and placement share it, so that they cannot disagree.
- A choice of instances counts, not the data set that it is made from; 0 means that nobody knows yet.
- Counts are of what their names say: prompts are instances, trajectories are prompts times `rollout.n`.
- `trainer.weight_sync=auto` means memory only if engines and trainer are on one host, and if a server that is started
  anew can still have its weights: not a step ahead, where the trainer has newer ones by then and a step's tokens are of
  one version. Groups that flow take any version. To send over NCCL takes vLLM beside the trainer; whether it is there,
  facts/weight_sync says.
"""

from collections.abc import Callable, Mapping
from math import isqrt

from swe_rl.config.choices import (
    CompactionKind,
    EngineKind,
    LoraServing,
    RolloutMode,
    RoutingReplay,
    RuntimeKind,
    SandboxKind,
    WeightSync,
)
from swe_rl.config.parts import Part, started_parts, starts_trainer
from swe_rl.config.schema import Config, EnvConfig, HardwareConfig, LayoutConfig, RolloutConfig, SandboxConfig
from swe_rl.facts.concurrency import most_concurrent
from swe_rl.facts.mix import is_mix, is_trained, part_envs
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.files.lines import lines_of

ReadText = Callable[[str], str | None]
# Instances of a repository share its image, which their ids begin with: a__b.0123 of a__b.0123.combine_file__x. The
# number is the published one of repositories.
_BY_REPOSITORY = {"swe_smith": 128}


def engine_gpus(layout: LayoutConfig) -> int:
    """Returns the GPUs of all engines; a layout without trainer GPUs and with one colocated engine of width one uses
    none."""
    if uses_no_gpu(layout):
        return 0
    return layout.engines * layout.engine_tp


def uses_no_gpu(layout: LayoutConfig) -> bool:
    """Tells whether everything is in one process on the CPU: then there is nothing to place."""
    return layout.colocated and layout.trainer_gpus == 0


def takes_turns(config: Config) -> bool:
    """Tells whether engines and trainer share GPUs, or are one process: while one of them works the other waits."""
    if not uses_no_gpu(config.layout):
        return config.layout.colocated
    return config.engine.kind is EngineKind.embedded and not config.layout.trainer_ranks


def shares_gpus(config: Config) -> bool:
    """Tells whether this run's own servers and its trainer's ranks are on the same GPUs, so that servers sleep while
    ranks work."""
    is_colocated = config.layout.colocated and config.layout.trainer_gpus > 0
    return is_colocated and config.engine.kind is EngineKind.vllm and Part.trainer in started_parts(config)


def asks_model(config: Config) -> bool:
    """Tells whether anybody samples from a model in this run: an agent that proves an environment does not."""
    return Part.engines in started_parts(config)


def is_elsewhere(kind: EngineKind) -> bool:
    """Tells whether somebody else runs these engines, so that they take nothing of this job's machines."""
    return kind in (EngineKind.external, EngineKind.endpoint)


def wants_routes(config: Config) -> bool:
    """Tells whether engines report which experts each token went to: they do if a trainer looks at it."""
    return (
        config.trainer.routing_replay is not RoutingReplay.none
        and config.model.num_experts > 0
        and Part.trainer in started_parts(config)
    )


def total_gpus(layout: LayoutConfig) -> int:
    """Returns all GPUs of a layout. Colocated engines and trainer take turns on the same GPUs, otherwise each has its
    own."""
    if layout.colocated:
        return max(engine_gpus(layout), layout.trainer_gpus)
    return engine_gpus(layout) + layout.trainer_gpus


def gpus_needed(config: Config) -> int:
    """Returns the GPUs that this job takes: only for what it starts, and none for servers of somebody else's."""
    layout = config.layout
    are_ours = Part.engines in started_parts(config) and not is_elsewhere(config.engine.kind)
    engines = engine_gpus(layout) if are_ours else 0
    trainer = 0
    if starts_trainer(config):
        trainer = layout.trainer_gpus
    if layout.colocated:
        return max(engines, trainer)
    return engines + trainer


def gpus_there(hardware: HardwareConfig) -> int:
    return hardware.nodes * hardware.gpus_per_node


def asks_ray(config: Config) -> bool:
    """Tells whether this job, or one that it checks or plans, has trainer ranks on a Ray cluster."""
    has_ranks = (config.layout.trainer_gpus or config.layout.trainer_ranks) > 0
    return config.hardware.ray_address is not None and has_ranks and starts_trainer(config)


def trainer_leaves_node(layout: LayoutConfig, gpus_per_node: int, *, after_engines: bool = True) -> bool:
    """Tells whether the trainer's ranks are on more than one node. GPUs of its own come after the engines', if there
    are engines."""
    if layout.colocated or not after_engines:
        before = 0
    else:
        before = engine_gpus(layout) % gpus_per_node
    return before + layout.trainer_gpus > gpus_per_node


def engines_leave_home(layout: LayoutConfig, gpus_per_node: int, *, with_trainer: bool = True) -> bool:
    """Tells whether an engine is on another node than the run itself, which is where the trainer is (`placement.home`).

    A job without a trainer is on the first node.
    """
    if uses_no_gpu(layout) or gpus_per_node < 1:
        return False
    if layout.colocated or not (layout.trainer_gpus and with_trainer):
        beside_trainer = 0
    else:
        beside_trainer = engine_gpus(layout) // gpus_per_node
    return (engine_gpus(layout) - 1) // gpus_per_node > 0 or beside_trainer > 0


def data_parallel(layout: LayoutConfig) -> int:
    """Returns the number of groups of trainer ranks that each see their own sequences; 1 if this process trains."""
    ranks = layout.trainer_gpus or layout.trainer_ranks
    return max(1, ranks // max(1, layout.sequence_parallel))


def replica_ranks(layout: LayoutConfig) -> int:
    """Returns how many trainer ranks have all parameters once; 1 if this process trains."""
    return layout.shard_ranks or max(1, layout.trainer_gpus or layout.trainer_ranks)


def num_replicas(layout: LayoutConfig) -> int:
    """Returns how many times the trainer's ranks have all parameters."""
    return max(1, (layout.trainer_gpus or layout.trainer_ranks) // replica_ranks(layout))


def trajectories_per_step(config: Config) -> int:
    return config.rollout.prompts_per_step * config.rollout.n


def trajectories_per_mini_batch(config: Config) -> int:
    return config.trainer.prompts_per_mini_batch * config.rollout.n


def optimizer_steps_per_step(config: Config) -> int:
    return -(-config.rollout.prompts_per_step // max(1, config.trainer.prompts_per_mini_batch))


def max_tokens_per_step(config: Config) -> int | None:
    """Returns the upper bound: every trajectory as long as it may be; None if nothing bounds its segments."""
    total = config.rollout.max_total_tokens
    longest = config.rollout.max_trajectory_tokens * most_conversations(config)
    if config.rollout.compaction is not CompactionKind.none:
        longest = total
    elif total:
        longest = min(longest, total)
    if longest == 0:
        return None
    return trajectories_per_step(config) * longest


def most_conversations(config: Config) -> int:
    """Returns how many conversations an attempt may have: its own, and those of its sub-agents."""
    delegate = config.agent.delegate
    return 1 + delegate.max_calls if delegate.depth else 1


def compaction_tokens(rollout: RolloutConfig) -> int:
    """Returns from how many tokens on a conversation is compacted."""
    return int(rollout.compaction_trigger * rollout.max_trajectory_tokens)


def divisors_of(number: int) -> list[int]:
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def nearest_multiples(value: int, step: int) -> str:
    """Returns words such as `96 or 112` for 99 and 16."""
    low = value // step * step
    if low:
        return f"{low} or {low + step}"
    return str(low + step)


def holds_container(config: Config) -> bool:
    """Tells whether each trajectory under way occupies a sandbox from its first to its last turn."""
    return config.sandbox.kind != SandboxKind.process


def sandbox_slots(config: Config) -> int:
    """Returns how many sandboxes fit the machines which run them, by CPUs and by memory. The room for a user's own kind
    of sandbox is unknown."""
    runtime = config.runtime
    hardware = config.hardware
    if config.sandbox.kind is SandboxKind.custom:
        return config.sandbox.concurrency
    if runtime.kind == RuntimeKind.job:
        return max(0, runtime.nodes) * server_slots(config)
    cpus = hardware.cpus_per_node - hardware.reserved_cpus
    return max(0, hardware.nodes) * _count_slots(config.sandbox, cpus, hardware.memory_gb)


def server_slots(config: Config) -> int:
    """Returns how many sandboxes fit one node of `runtime`."""
    runtime = config.runtime
    return _count_slots(config.sandbox, runtime.cpus_per_node - runtime.reserved_cpus, runtime.memory_gb)


def _count_slots(sandbox: SandboxConfig, cpus: int, memory_gb: float) -> int:
    if sandbox.cpus > 0:
        by_cpus = int(cpus / sandbox.cpus + 1e-9)
    else:
        by_cpus = sandbox.concurrency
    if sandbox.memory_gb > 0:
        by_memory = int(memory_gb / sandbox.memory_gb + 1e-9)
    else:
        by_memory = sandbox.concurrency
    return max(0, min(by_cpus, by_memory))


def trajectories_at_once(config: Config) -> int:
    """Returns how many trajectories of one step are under way at most."""
    return max(1, min(trajectories_under_way(config), trajectories_per_step(config)))


def most_at_once(config: Config) -> int:
    """Returns how many trajectories `rollout.concurrency` allows, or the most that its `auto` may grow to."""
    return most_concurrent(config, of_steps=Part.steps in started_parts(config))


def trajectories_under_way(config: Config) -> int:
    """Returns how many trajectories are under way at most, of however many steps."""
    at_once = most_at_once(config)
    return max(1, min(at_once, config.sandbox.concurrency) if holds_container(config) else at_once)


def waves_per_step(config: Config) -> int:
    """Returns how often the places for trajectories are filled in one step."""
    return -(-trajectories_per_step(config) // trajectories_at_once(config))


def listed_ids(env: EnvConfig, read_text: ReadText) -> tuple[str, ...] | None:
    """Returns the ids that env.instance_ids or the file of env.instances name, each once, or None if there is no
    list."""
    if env.instance_ids:
        return tuple(dict.fromkeys(env.instance_ids))
    if env.instances is None or "*" in env.instances or (text := read_text(env.instances)) is None:
        return None
    names = (line.split("#")[0].strip() for line in lines_of(text, ends=False))
    return tuple(dict.fromkeys(name for name in names if name))


def trained_instances(env: EnvConfig, read_text: ReadText) -> int:
    """Returns how many instances the split that is trained on has at most; 0 where it is not known."""
    if is_mix(env):
        counts = [trained_instances(part, read_text) for part in _trained_envs(env)]
        return sum(counts) if all(counts) else 0
    listed = listed_ids(env, read_text)
    if listed is None:
        return env.num_instances
    return len(listed)


def _trained_envs(env: EnvConfig) -> list[EnvConfig]:
    """Returns the environments that are trained: those of a mix whose part has a weight."""
    return [part for name, part in part_envs(env).items() if is_trained(env, name)]


def trained_images_gb(env: EnvConfig, read_text: ReadText) -> float:
    """Returns the size of the images that the split that is trained on needs at most, before shared layers."""
    return sum(trained_images(part, read_text) * part.image_gb for part in _trained_envs(env))


def trained_images(env: EnvConfig, read_text: ReadText) -> int:
    """Returns how many images the split that is trained on needs at most."""
    if is_mix(env):
        return sum(trained_images(part, read_text) for part in _trained_envs(env))
    if env.image_template is not None and "{" not in env.image_template:
        return 1
    listed = listed_ids(env, read_text)
    if env.name not in _BY_REPOSITORY:
        return trained_instances(env, read_text)
    if listed is None:
        return _BY_REPOSITORY[env.name]
    return len({name.rpartition(".")[0] for name in listed})


_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def wanted_sync(config: Config, environment: Mapping[str, str]) -> WeightSync:
    """Returns `disk`, `nccl` or `ipc`; with engine=embedded it has no meaning."""
    chosen = config.trainer.weight_sync
    if chosen is not WeightSync.auto:
        return chosen
    if serves_adapter(config):
        return WeightSync.disk
    if shares_gpus(config):
        if unshareable_allocator(environment) or leaves_host(config):
            return WeightSync.disk
        return WeightSync.ipc
    slices = config.hardware.mig or "MIG-" in environment.get("CUDA_VISIBLE_DEVICES", "")
    others = bool(config.engine.command or environment.get(VLLM_COMMAND, "").strip())
    if _own_gpus_of_one_host(config) and not slices and not others:
        return WeightSync.nccl
    return WeightSync.disk


# vLLM 0.32 takes these as --max-lora-rank.
SERVED_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def serves_adapter(config: Config) -> bool:
    """Tells whether engines hold the base and get adapters."""
    return config.trainer.lora_rank > 0 and config.trainer.lora_serving is LoraServing.adapter


def leaves_host(config: Config) -> bool:
    """Tells whether engines or ranks of this run are on another node than the run itself."""
    with_trainer = starts_trainer(config)
    away = engines_leave_home(config.layout, config.hardware.gpus_per_node, with_trainer=with_trainer)
    return away or with_trainer and trainer_elsewhere(config)


def read_elsewhere(config: Config) -> bool:
    """Tells whether weights pass through a folder that other nodes, or servers of somebody else's, have to see: those
    of each update, or of a server that is started anew, whose share each rank writes.

    That folder is `paths.scratch`, or else the run's own folder: a cluster's nodes share where jobs are submitted from.
    """
    if Part.trainer not in started_parts(config) or config.engine.kind is EngineKind.embedded:
        return False
    if config.engine.kind is EngineKind.external:
        return True
    return not uses_no_gpu(config.layout) and leaves_host(config)


def trainer_elsewhere(config: Config) -> bool:
    """Tells whether ranks of the trainer are on another node than the run itself."""
    layout = config.layout
    per_node = config.hardware.gpus_per_node
    return per_node > 0 < layout.trainer_gpus and trainer_leaves_node(
        layout, per_node, after_engines=Part.warm_start not in started_parts(config)
    )


def unshareable_allocator(environment: Mapping[str, str]) -> str:
    """Returns the variable, with its value, by which no other process can open memory of torch's allocator; or an empty
    text."""
    for name in _ALLOCATOR:
        value = environment.get(name, "")
        if "expandable_segments:true" in value.lower() or "cudamallocasync" in value.lower():
            return f"{name}={value}"
    return ""


def samples_ahead(config: Config) -> bool:
    """Tells whether the next step is sampled while the trainer works, with weights that the trainer then no longer
    has."""
    return config.trainer.max_staleness_steps > 0 and config.rollout.mode is not RolloutMode.stream


def _own_gpus_of_one_host(config: Config) -> bool:
    layout = config.layout
    hardware = config.hardware
    if config.engine.kind is not EngineKind.vllm or Part.trainer not in started_parts(config) or uses_no_gpu(layout):
        return False
    if hardware.ray_address or samples_ahead(config):
        return False
    return hardware.gpus_per_node > 0 and not leaves_host(config)
