"""Resource limits of one command, set by a small bash prelude that then becomes the command.

Invariants:
- No code runs between fork and exec in this (large, threaded) process: limits are set after the exec.
- The CPU limit is a backstop for what escapes a timeout; it cannot end a command before its timeout would.
"""

import math
import os
from dataclasses import dataclass

from swe_rl.config.schema import SandboxConfig


@dataclass(frozen=True, slots=True)
class Limits:
    memory_kib: int  # address space of each process
    file_kib: int  # size of each written file
    processes: int | None  # of the command's user; None where that user is shared with the rest of the host


def limits_of(config: SandboxConfig, *, count_processes: bool) -> Limits:
    return Limits(
        memory_kib=int(config.memory_gb * 1024**2),
        file_kib=config.max_file_mb * 1024,
        processes=config.max_processes if count_processes else None,
    )


def prelude(limits: Limits, bash: str, timeout_s: float) -> list[str]:
    """The argv prefix that sets `limits` and execs the rest; a limit that is already lower stays as it is."""
    cpu_s = math.ceil(timeout_s) * (os.cpu_count() or 1) + 1
    wanted = [f"-v {limits.memory_kib}", f"-f {limits.file_kib}", f"-t {cpu_s}", "-c 0"]
    if limits.processes is not None:
        wanted.append(f"-u {limits.processes}")
    script = "; ".join(f"ulimit {limit} 2>/dev/null" for limit in wanted)
    return [bash, "--norc", "-c", f'{script}; exec "$@"', "limits"]
