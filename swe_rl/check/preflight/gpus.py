"""Compares the GPUs of this node with hardware.*: their number, size and mode, and whether somebody else uses them.

Invariants:
- Sizes are GB (10^9 bytes), as in conf/hardware.
- CUDA_VISIBLE_DEVICES counts: what it hides is neither counted nor blamed.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import System, job_environment
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.errors import count_noun
from swe_rl.facts.sizes import uses_no_gpu
from swe_rl.host.gpus import (
    MIB,
    DriverError,
    Gpu,
    Slice,
    only_visible,
    read_gpus,
    read_slices,
    visible_devices,
)

BUSY_MIB = 100  # a driver with nobody on the GPU takes less
_ALMOST = 0.98  # error correction and the driver keep some of what a GPU is sold with


def uses_gpus(config: Config) -> bool:
    """Tells whether the job uses GPUs. `engine=vllm` in a layout without GPUs is its CPU build."""
    on_gpus = config.engine.kind is EngineKind.vllm and not uses_no_gpu(config.layout)
    return on_gpus or config.layout.trainer_gpus > 0


def probe_gpus(config: Config, system: System) -> Iterator[Finding]:
    if not uses_gpus(config):
        return
    try:
        gpus = read_gpus(system)
        if config.hardware.mig:
            slices = read_slices(system)
        else:
            slices = []
    except DriverError as reason:
        yield error(
            "preflight_gpus",
            "hardware.gpus_per_node",
            str(reason),
            "start on a machine with GPUs, or with layout=local engine=embedded model=tiny",
        )
        return
    entries = visible_devices(job_environment(config, system).get("CUDA_VISIBLE_DEVICES"))
    visible = only_visible(gpus, entries)
    yield from _check_mig_mode(config, visible)
    if slices:
        yield from _check_slices(config, slices)
    elif not config.hardware.mig:
        yield from _check_count(config, len(gpus), "GPU")
        yield from _check_memory(config, visible)
    yield from _check_visible(config, entries, len(visible))
    yield from _check_busy(config, visible)


def _check_mig_mode(config: Config, gpus: list[Gpu]) -> Iterator[Finding]:
    enabled = [str(gpu.index) for gpu in gpus if gpu.mig]
    if config.hardware.mig and not enabled:
        yield error("preflight_mig", "hardware.mig", "no GPU here is in MIG mode", "hardware.mig=false")
    if not config.hardware.mig and enabled:
        yield error(
            "preflight_mig",
            "hardware.mig",
            f"GPU {', '.join(enabled)} is split into MIG slices; a process sees one of them, and there is no NCCL "
            "between them",
            "hardware.mig=true, or choose nodes with whole GPUs",
        )


def _check_count(config: Config, count: int, what: str) -> Iterator[Finding]:
    wanted = config.hardware.gpus_per_node
    if count < wanted:
        yield error(
            "preflight_gpus",
            "hardware.gpus_per_node",
            f"this machine has {count_noun(count, what)}",
            f"hardware.gpus_per_node={count} with a layout of that size, or choose another machine",
        )


def _check_slices(config: Config, slices: list[Slice]) -> Iterator[Finding]:
    yield from _check_count(config, len(slices), "MIG slice")
    smallest = min((part.memory_gb for part in slices), default=None)
    yield from _too_small(config, "a MIG slice", smallest)


def _check_memory(config: Config, gpus: list[Gpu]) -> Iterator[Finding]:
    known = [(gpu.memory_gb, gpu) for gpu in gpus if gpu.memory_gb is not None]
    if known:
        memory_gb, gpu = min(known, key=lambda pair: pair[0])
        yield from _too_small(config, f"GPU {gpu.index} ({gpu.name})", memory_gb)


def _too_small(config: Config, what: str, memory_gb: float | None) -> Iterator[Finding]:
    wanted_gb = config.hardware.gpu_memory_gb
    if memory_gb is not None and memory_gb < wanted_gb * _ALMOST:
        yield error(
            "preflight_gpu_memory",
            "hardware.gpu_memory_gb",
            f"{what} has {memory_gb:.1f} GB; what fits was reckoned with more",
            f"hardware.gpu_memory_gb={memory_gb:.0f}",
        )


def _check_visible(config: Config, entries: list[str] | None, whole: int) -> Iterator[Finding]:
    """Finds that CUDA_VISIBLE_DEVICES shows too few GPUs.

    `whole` GPUs are left of the entries. An index that no GPU has leaves none.
    """
    wanted = config.hardware.gpus_per_node
    if entries is None:
        return
    slices = sum(entry.startswith("MIG-") for entry in entries)
    shown = slices or whole
    if shown < wanted:
        yield error(
            "preflight_visible_gpus",
            "hardware.gpus_per_node",
            f"CUDA_VISIBLE_DEVICES='{','.join(entries)}' shows {shown} of them",
            "unset CUDA_VISIBLE_DEVICES (in a SLURM job: ask for more GPUs)",
        )
    if config.engine.kind is EngineKind.vllm and slices:
        yield warning(
            "preflight_mig_uuid",
            "hardware.mig",
            "CUDA_VISIBLE_DEVICES names MIG slices by UUID; several versions of vLLM read only numbers there and "
            "fail when they start",
            f"export CUDA_VISIBLE_DEVICES={','.join(str(index) for index in range(len(entries)))}",
        )


def _check_busy(config: Config, gpus: list[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.used_mib is not None and gpu.used_mib > BUSY_MIB and not gpu.mig:
            yield warning(
                "preflight_gpu_busy",
                "hardware.gpu_memory_gb",
                f"GPU {gpu.index} ({gpu.name}): {gpu.used_mib * MIB / 1e9:.1f} GB are in use already, by somebody else "
                "or by what an earlier run left behind",
                f"nvidia-smi -i {gpu.index}, then end that process or hide the GPU with CUDA_VISIBLE_DEVICES",
            )
