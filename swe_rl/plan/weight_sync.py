"""Which way new weights take to the engines: what `trainer.weight_sync=auto` means for a configuration on a machine.

Invariants:
- By itself memory only where it was measured: engines and trainer of one host, in step with each other.
- It takes vLLM beside the trainer to send over NCCL.
"""

import importlib.util
import os
from collections.abc import Mapping

from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.plan.sizes import (
    engines_leave_home,
    shares_gpus,
    trainer_leaves_node,
    uses_no_gpu,
)

VLLM_COMMAND = "SWE_RL_VLLM_COMMAND"  # servers of another environment
GLOO, NCCL, IPC = "gloo", "nccl", "swe_rl_ipc"  # names of back ends in vLLM's workers; its own `ipc` is another one
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def wanted(config: Config, environment: Mapping[str, str]) -> WeightSync:
    """`disk`, `nccl` or `ipc`; with engine=embedded it has no meaning."""
    chosen = config.trainer.weight_sync
    if chosen is not WeightSync.auto:
        return chosen
    if shares_gpus(config):
        return WeightSync.disk if unshareable(environment) or leaves_host(config) else WeightSync.ipc
    slices = config.hardware.mig or "MIG-" in environment.get("CUDA_VISIBLE_DEVICES", "")
    others = bool(config.engine.command or environment.get(VLLM_COMMAND))
    return WeightSync.nccl if _own_gpus_of_one_host(config) and not slices and not others else WeightSync.disk


def leaves_host(config: Config) -> bool:
    """Whether engines or ranks of this run are on another node than the run itself."""
    return engines_leave_home(config.layout, config.hardware.gpus_per_node) or trainer_elsewhere(config)


def read_elsewhere(config: Config, environment: Mapping[str, str]) -> bool:
    """Whether new weights pass through a folder that other nodes, or servers of somebody else's, have to see.

    That is `paths.scratch`, or else the run's own folder: a cluster's nodes share where jobs are submitted from.
    """
    layout, per_node = config.layout, config.hardware.gpus_per_node
    if Part.trainer not in starts(config) or config.engine.kind is EngineKind.embedded:
        return False
    if config.engine.kind is EngineKind.external:
        return True
    if per_node < 1 or uses_no_gpu(layout):
        return False
    away = trainer_elsewhere(config)
    return engines_leave_home(layout, per_node) or (away and wanted(config, environment) is not WeightSync.nccl)


def trainer_elsewhere(config: Config) -> bool:
    """Whether ranks of the trainer are on another node than the run itself."""
    layout, per_node = config.layout, config.hardware.gpus_per_node
    return per_node > 0 < layout.trainer_gpus and trainer_leaves_node(layout, per_node)


def unshareable(environment: Mapping[str, str]) -> str:
    """The variable, with its value, by which no other process can open memory of torch's allocator; or nothing."""
    for name in _ALLOCATOR:
        value = environment.get(name, "")
        if "expandable_segments:true" in value.lower() or "cudamallocasync" in value.lower():
            return f"{name}={value}"
    return ""


def _own_gpus_of_one_host(config: Config) -> bool:
    layout, hardware = config.layout, config.hardware
    if config.engine.kind is not EngineKind.vllm or Part.trainer not in starts(config) or uses_no_gpu(layout):
        return False
    if hardware.ray_address or config.trainer.max_staleness_steps:
        return False
    return hardware.gpus_per_node > 0 and not leaves_host(config)


class NoVllmBesideTrainerError(UserError):
    """trainer.weight_sync=nccl where only the servers have vLLM."""


def transfer_kind(config: Config) -> str | None:
    """None where weights go another way."""
    way = wanted(config, os.environ)
    if config.engine.kind is EngineKind.embedded or way is WeightSync.disk:
        return None  # not empty, so that whoever inherits it may leave it
    if way is WeightSync.ipc:
        return IPC
    if uses_no_gpu(config.layout):
        return GLOO
    return NCCL if config.trainer.weight_sync is WeightSync.nccl or _has_vllm() else None


def require_wire(config: Config) -> None:
    """Before anything is started. Raises NoVllmBesideTrainerError."""
    if transfer_kind(config) == NCCL and not _has_vllm():
        raise NoVllmBesideTrainerError(
            "trainer.weight_sync=nccl: the trainer's end is vLLM's own, and vLLM is not installed in this environment, "
            "whatever the servers are started with. Install the extra `gpu` here, or take trainer.weight_sync=disk"
        )


def _has_vllm() -> bool:
    """Here, and so where the trainer's ranks are. Nothing is imported to find out."""
    return importlib.util.find_spec("vllm") is not None
