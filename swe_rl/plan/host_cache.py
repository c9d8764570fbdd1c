"""This module says how much of a node's memory is a second tier of an engine's cache, and what that tier is worth.

Invariants:
- Rules, plan, preflight, router and the servers' command lines take the size from `host_cache_gb` alone.
- All engines of a run get the same size, which the node with the most engines can spare.
- `auto` is never a mistake: where a tier would not fit, or would hold nothing that the GPUs do not hold, it is 0.
- The tier has a copy of every block that an engine computes. So it is of use only as far as it is larger than the cache
  on the GPU.
- Sizes are GB (10^9 bytes). vLLM's flag is in GiB.
"""

import math
from dataclasses import dataclass

from swe_rl.config.choices import EngineKind, RuntimeKind, SandboxKind
from swe_rl.config.parts import Part, started_parts, starts_trainer
from swe_rl.config.schema import Config
from swe_rl.facts import memory
from swe_rl.facts.server_arguments import server_arguments
from swe_rl.facts.sizes import gpus_needed, sandbox_slots, trajectories_at_once, uses_no_gpu

AUTO = "auto"
# The user's own connector of vLLM is named by this flag. Then the tier is the user's affair.
CONNECTOR = "--kv-transfer-config"
GIB = 1 << 30
# Linux lets files in memory have half of it, and vLLM's tier is such a file.
SHARED_SHARE = 0.5
# A server and a rank of the trainer have so much of the node's memory for each of their GPUs. This is assumed, not
# measured.
PROCESS_GB = 8.0
# Measured on H200 with vLLM 0.26: a server with a tier of 90 GiB was up 142 s later than one without.
START_S_PER_GB = 1.5
# `auto` adds no more than this to a server's start.
LONGEST_START_S = 300.0


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Says what the memory of the fullest node is for, in GB. `engines` share what is spare."""

    there_gb: float
    trainer_gb: float
    sandboxes_gb: float
    processes_gb: float
    engines: int

    @property
    def spare_gb(self) -> float:
        used = self.trainer_gb + self.sandboxes_gb + self.processes_gb
        return max(0.0, self.there_gb * memory.MOST_OF_A_HOST - used)

    @property
    def most_gb(self) -> float:
        """Returns what one engine's tier may have at most."""
        return min(self.spare_gb, self.there_gb * SHARED_SHARE) / max(1, self.engines)


def node_memory(config: Config) -> NodeMemory:
    """Returns the memory of a node with as many engines as there are on any, and the trainer if it may be there."""
    hardware = config.hardware
    per_node = max(1, hardware.gpus_per_node)
    engines = max(1, min(config.layout.engines, per_node // max(1, config.layout.engine_tp)))
    trainer_nodes = 1
    if starts_trainer(config):
        trainer_nodes = max(1, -(-config.layout.trainer_gpus // per_node))
    # The trainer gathers what it sends to the engines.
    trainer = 0.0
    if starts_trainer(config):
        trainer = memory.offloaded_gb(config) / trainer_nodes + memory.update_gb(config)
    return NodeMemory(
        there_gb=hardware.memory_gb,
        trainer_gb=trainer,
        sandboxes_gb=_sandboxes_gb(config),
        processes_gb=PROCESS_GB * min(per_node, gpus_needed(config)),
        engines=engines,
    )


def _sandboxes_gb(config: Config) -> float:
    """Returns what sandboxes on the run's own nodes may use, those of the fullest node."""
    here = config.runtime.kind is RuntimeKind.none and config.sandbox.kind in (
        SandboxKind.process,
        SandboxKind.docker,
        SandboxKind.podman,
        SandboxKind.apptainer,
    )
    if not here or Part.sandboxes not in started_parts(config):
        return 0.0
    places = min(config.sandbox.concurrency, max(1, sandbox_slots(config)))
    return places * config.sandbox.memory_gb / max(1, config.hardware.nodes)


def stated_gb(config: Config) -> float | None:
    """Returns the number that `engine.host_cache_gb` states, None for `auto`. Raises ValueError for anything else."""
    text = config.engine.host_cache_gb.strip()
    if text == AUTO:
        return None
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{text} is no size")
    return number


def host_cache_gb(config: Config) -> float:
    """Returns the size of the tier that each of this run's own servers gets; 0 where there is none.

    A text that says no size counts as 0, because a rule refuses it.
    """
    if not may_have_tier(config):
        return 0.0
    try:
        stated = stated_gb(config)
    except ValueError:
        return 0.0
    if stated is None:
        return automatic_gb(config)
    return stated


def may_have_tier(config: Config) -> bool:
    """Tells whether this run's own servers can have a tier: vLLM copies blocks between a GPU and the host alone."""
    engine = config.engine
    is_ours = engine.kind is EngineKind.vllm and Part.engines in started_parts(config)
    return is_ours and not uses_no_gpu(config.layout) and engine.prefix_caching


def automatic_gb(config: Config) -> float:
    """Returns what `auto` takes: whole gigabytes, and no more than the trajectories under way can fill."""
    if CONNECTOR in server_arguments(config, {}):
        return 0.0
    wanted = min(node_memory(config).most_gb, LONGEST_START_S / START_S_PER_GB)
    if Part.rollouts in started_parts(config):
        wanted = min(wanted, useful_gb(config))
    size = float(math.floor(wanted))
    if size > gpu_cache_gb(config):
        return size
    return 0.0


def useful_gb(config: Config) -> float:
    """Returns the keys and values of the trajectories that one engine has at once, each as long as it may be."""
    programs = -(-trajectories_at_once(config) // max(1, config.layout.engines))
    tokens = programs * config.rollout.max_trajectory_tokens
    return math.ceil(tokens * memory.cached_token_bytes(config) / 1e9)


def gpu_cache_gb(config: Config) -> float:
    """Returns the keys and values that one engine has on its GPUs."""
    return memory.kv_tokens_per_engine(config) * memory.cached_token_bytes(config) / 1e9


def host_cache_tokens(config: Config) -> int:
    """Returns how many tokens an engine's tier holds. `engine=external` states the size of what its servers have."""
    size = host_cache_gb(config)
    if config.engine.kind is EngineKind.external:
        try:
            size = stated_gb(config) or 0.0
        except ValueError:
            size = 0.0
    return int(size * 1e9 / memory.cached_token_bytes(config))


def held_tokens(config: Config) -> int:
    """Returns how many tokens an engine holds, on its GPUs or in its tier, which has a copy of those; 0: not known."""
    on_gpus = memory.kv_tokens_per_engine(config)
    if on_gpus:
        return max(on_gpus, host_cache_tokens(config))
    return 0


def crowding(config: Config) -> float:
    """Returns the tokens of the trajectories under way over the tokens that the engines can hold, or 0 if nothing is
    known."""
    capacity = held_tokens(config) * config.layout.engines
    if capacity:
        return trajectories_at_once(config) * config.rollout.typical_trajectory_tokens / capacity
    return 0.0


def host_cache_start_s(config: Config) -> float:
    """Returns how much longer a server takes to start because of its tier, whose memory is pinned."""
    return host_cache_gb(config) * START_S_PER_GB


def host_cache_arguments(config: Config) -> list[str]:
    """Returns the flags of vLLM's server."""
    size = host_cache_gb(config)
    if size:
        return ["--kv-offloading-size", f"{size * 1e9 / GIB:.3f}"]
    return []


def figures(config: Config) -> dict[str, float]:
    """Returns what the plan says of the tier, or nothing where engines have none."""
    size = host_cache_gb(config)
    if not size:
        return {}
    node = node_memory(config)
    return {
        "host_cache_gb_per_engine": size,
        "host_cache_tokens_per_engine": host_cache_tokens(config),
        "host_memory_pinned_gb_per_node": size * node.engines,
        "host_memory_spare_gb_per_node": round(node.spare_gb - size * node.engines, 1),
        "host_cache_start_s": round(host_cache_start_s(config)),
    }
