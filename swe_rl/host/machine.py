"""This module finds what this machine has for a run: GPUs, cores, memory, and what a SLURM allocation leaves of them.

Invariants:
- Only what this process may use counts: CUDA_VISIBLE_DEVICES, CPU affinity, control groups, the allocation.
- Nothing that changes from one minute to the next is read (free memory, free disk): the same machine gives the same
  answer to every job of a sweep.
- Nothing raises: a driver that does not answer means no GPU, and `driver` says why.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swe_rl.host.gpus import (
    DriverError,
    RunsPrograms,
    only_visible,
    read_gpus,
    read_slices,
    visible_devices,
    visible_slices,
)
from swe_rl.host.program import COMMAND_S, Completed, Unanswered, run_program

# Eight GPUs without the driver's persistence mode take seconds.
DRIVER_S = 10.0
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_COMPILERS = ("cc", "gcc", "clang")

ReadText = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """Says what a machine has. `gpus` are whole GPUs, or MIG slices if `mig`; `gpu_memory_gb` is the smallest one's, in
    10^9 bytes.

    `gpu_share` is the part of a whole GPU's compute that one of them has. `memory_gb` and `cpus` are of one node.
    `time_limit_min` is 0 if nothing limits it.
    """

    nodes: int
    gpus: int
    gpu_name: str
    gpu_memory_gb: float
    gpu_share: float
    mig: bool
    cpus: int
    memory_gb: float
    compiler: bool
    time_limit_min: int
    driver: str = ""


class Driver:
    """Runs nvidia-smi of this machine."""

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Completed | None:
        return run_program(command, max(timeout_s, DRIVER_S))


@cache
def this_machine() -> Machine:
    """Returns this machine, which is asked once a process."""
    return describe_machine(Driver(), os.environ, cpus=count_cpus(), memory_bytes=memory_bytes())


def describe_machine(system: RunsPrograms, environ: Mapping[str, str], *, cpus: int, memory_bytes: int) -> Machine:
    """Describes a machine. `cpus` and `memory_bytes` are this process's own limits; the allocation may set lower
    ones."""
    count, name, memory_gb, share, mig, driver = _read_gpus(system, environ)
    allotted = _parse_number(environ.get("SLURM_MEM_PER_NODE")) * 1024**2
    start, end = (_parse_number(environ.get(f"SLURM_JOB_{moment}_TIME")) for moment in ("START", "END"))
    return Machine(
        nodes=max(1, _parse_number(environ.get("SLURM_JOB_NUM_NODES"))),
        gpus=count,
        gpu_name=name,
        gpu_memory_gb=round(memory_gb, 1),
        gpu_share=share,
        mig=mig,
        cpus=min(cpus, _parse_number(environ.get("SLURM_CPUS_ON_NODE")) or cpus),
        memory_gb=int(min(memory_bytes, allotted or memory_bytes) / 1e8) / 10,
        compiler=any(shutil.which(program) for program in _COMPILERS),
        time_limit_min=(end - start) // 60 if 0 < start < end else 0,
        driver=driver,
    )


def _read_gpus(system: RunsPrograms, environ: Mapping[str, str]) -> tuple[int, str, float, float, bool, str]:
    """Returns count, name, memory of the smallest in GB, share of a whole GPU, MIG or not, what is wrong with the
    driver."""
    entries = visible_devices(environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        gpus = only_visible(read_gpus(system), entries)
        # If only some GPUs are split, the whole ones are taken.
        if not gpus or not all(gpu.mig for gpu in gpus):
            whole = [gpu for gpu in gpus if not gpu.mig]
            sizes = [gpu.memory_gb for gpu in whole if gpu.memory_gb is not None]
            return len(whole), whole[0].name if whole else "", min(sizes, default=0.0), 1.0, False, ""
        slices = visible_slices(read_slices(system), entries)
    except (DriverError, Unanswered) as error:
        return 0, "", 0.0, 1.0, False, str(error)
    smallest = min(slices, key=lambda part: part.memory_gb, default=None)
    if smallest is None:
        return 0, gpus[0].name, 0.0, 1.0, True, "the GPUs are in MIG mode and have no slice"
    return len(slices), smallest.name, smallest.memory_gb, smallest.sevenths / 7, True, ""


def count_cpus(read_text: ReadText | None = None) -> int:
    """Returns how many cores this process may use: under SLURM the job's, in a container its quota, rounded up."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota, _, period = ((read_text or _read_text)(_CPU_QUOTA) or "").strip().partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        count = min(count, max(1, -(-int(quota) // int(period))))
    return count


def memory_bytes(read_text: ReadText | None = None) -> int:
    """Returns the machine's memory, or what a control group leaves of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [text.strip() for path in _MEMORY_LIMITS if (text := (read_text or _read_text)(path))]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def _read_text(path: str) -> str | None:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return None


def _parse_number(text: str | None) -> int:
    if text and text.isdigit():
        return int(text)
    return 0
