"""Probes the machine's disks and memory.

It finds whether there is room for the checkpoints, in a place that a cluster does not cap, a scratch folder that can be
written, and enough memory that processes share as files.

Invariants:
- Free space is of the file system. A quota below it cannot be seen from here.
"""

import tempfile
from collections.abc import Iterator
from pathlib import PurePath

from swe_rl.check.findings import Finding, error, error_if, warning
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import EngineKind
from swe_rl.config.parts import starts_trainer
from swe_rl.config.schema import Config
from swe_rl.facts.memory import checkpoint_gb, checkpoints_gb, checkpoints_on_disk
from swe_rl.facts.warm_start import trainer_config
from swe_rl.plan.host_cache import host_cache_gb, node_memory

_SHARED = "/dev/shm"
_SHARED_GB = 1.0  # NCCL fails where less is free


def probe_outputs(config: Config, system: System) -> Iterator[Finding]:
    yield from _checkpoints_fit(config, system)
    yield from _not_in_home(config, system)


def _checkpoints_fit(config: Config, system: System) -> Iterator[Finding]:
    if not starts_trainer(config):
        return
    config = trainer_config(config)
    one_gb = checkpoint_gb(config)
    needed_gb = checkpoints_gb(config)
    free_gb = system.disk_free_bytes(config.paths.outputs) / 1e9
    if needed_gb > free_gb:
        resumed = config.trainer.resume != "none"  # some of them may be there already
        yield error_if(not resumed)(
            "preflight_disk",
            "paths.outputs",
            f"checkpoints of {one_gb:.1f} GB, {checkpoints_on_disk(config)} at once, take {needed_gb:.1f} GB there; "
            f"{free_gb:.1f} GB are free",
            f"paths.outputs=FOLDER on a larger disk{_fewer_checkpoints(one_gb, free_gb)}",
        )


def _fewer_checkpoints(one_gb: float, free_gb: float) -> str:
    fits = int(free_gb / one_gb) - 1
    if fits >= 1:
        return f", or trainer.keep_checkpoints={fits}"
    return ""


def _not_in_home(config: Config, system: System) -> Iterator[Finding]:
    on_cluster = config.hardware.partition is not None or "SLURM_JOB_ID" in system.environment
    home = system.environment.get("HOME")
    if not on_cluster or not home:
        return
    folder = PurePath(system.resolve(config.paths.outputs))
    if folder.is_relative_to(system.resolve(home)):
        yield warning(
            "preflight_home",
            "paths.outputs",
            f"lies in your home folder {home}; on clusters that is small, slow and backed up",
            "paths.outputs=FOLDER on the cluster's scratch or project file system",
        )


def shared_memory(config: Config, system: System) -> Iterator[Finding]:
    """Warns where little memory is left that processes share as files.

    NCCL's processes of a node talk through it. A container has 64 MB of it by default.
    """
    yield from _tier_fits(config, system)
    several = config.layout.trainer_gpus > 1 or config.engine.kind is EngineKind.vllm and config.layout.engine_tp > 1
    if not several or not system.exists(_SHARED):
        return
    free_gb = system.disk_free_bytes(_SHARED) / 1e9
    if free_gb < _SHARED_GB:
        yield warning(
            "preflight_shm",
            "layout.name",
            f"several processes share GPUs' data through {_SHARED}, where {free_gb:.2f} GB are free; NCCL fails where "
            f"less than {_SHARED_GB:g} GB are",
            "start this container with --ipc=host or --shm-size=16g, or mount a larger tmpfs there",
        )


def _tier_fits(config: Config, system: System) -> Iterator[Finding]:
    """Finds tiers of engines' caches for which the files in memory have no room: a server ends at its start then."""
    size = host_cache_gb(config)
    if not size or not system.exists(_SHARED):
        return
    engines = node_memory(config).engines
    free_gb = system.disk_free_bytes(_SHARED) / 1e9
    if size * engines > free_gb:
        fits = int(free_gb / engines)
        yield error(
            "preflight_host_cache",
            "engine.host_cache_gb",
            f"{engines} engines of a node keep {size * engines:.0f} GB in {_SHARED}, where {free_gb:.0f} GB are free",
            f"engine.host_cache_gb={fits}, or `mount -o remount,size=...` of {_SHARED}; for a container --shm-size",
        )


def probe_scratch(config: Config, system: System) -> Iterator[Finding]:
    folder = config.paths.scratch or tempfile.gettempdir()
    if not system.writable(folder):
        yield error(
            "preflight_scratch",
            "paths.scratch",
            f"{folder} cannot be made or written to by this user",
            "paths.scratch=FOLDER on a disk of this node that you may write to",
        )
    elif reason := system.scratch_refused(config.paths.scratch):
        yield error(
            "preflight_scratch",
            "paths.scratch",
            f"{reason}; sandboxes and weights lie there while a run lasts, and nobody else may reach them",
            "paths.scratch=FOLDER that you may write to, or have what is there removed",
        )


_ALMOST = 0.95  # the kernel keeps some of what a machine is sold with


def cpus_and_memory(config: Config, system: System) -> Iterator[Finding]:
    hardware = config.hardware
    cpus = system.cpus()
    memory_gb = system.memory_bytes() / 1e9
    if cpus < hardware.cpus_per_node:
        yield warning(
            "preflight_cpus",
            "hardware.cpus_per_node",
            f"this process may use {cpus} CPUs; the slots for sandboxes are reckoned from {hardware.cpus_per_node}",
            f"hardware.cpus_per_node={cpus}",
        )
    if memory_gb < hardware.memory_gb * _ALMOST:
        yield warning(
            "preflight_memory",
            "hardware.memory_gb",
            f"this process may use {memory_gb:.1f} GB of memory",
            f"hardware.memory_gb={memory_gb:.1f}",
        )


def probe_port(config: Config, system: System) -> Iterator[Finding]:
    host = config.gateway.host
    number = config.gateway.port
    reason = system.bind_refused(host, number)
    if reason is None:
        return
    if number == 0:
        yield error(
            "preflight_port",
            "gateway.host",
            f"cannot be listened on: {reason}",
            "gateway.host=127.0.0.1, or another address of this machine",
        )
    else:
        yield error(
            "preflight_port",
            "gateway.port",
            f"cannot be listened on at {host}: {reason}",
            "gateway.port=0 (any free port)",
        )
