"""This module tells which process something belongs to: a pid, and what tells it from a later process with the same
pid.

Invariants:
- The kernel's own counts decide: the boot's id, and the ticks from the boot to the process's start. No wall clock takes
  part: somebody may step it while a run goes on.
- What cannot be known from here counts as alive: on another host, in another pid namespace, or of a record without
  these counts (swe_rl 0.4 wrote a wall-clock time) whose pid is in use. Nobody's things are removed on a guess.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# These are places in /proc/PID/stat after the name: its fields 3 and 22.
_STATE = 0
_START_TICKS = 19
_ENDED = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    host: str
    pid: int
    # Empty texts and -1 mean that a value is not known.
    boot_id: str = ""
    pid_namespace: str = ""
    start_ticks: int = -1

    @classmethod
    def mine(cls) -> "ProcessIdentity":
        _, start_ticks = _read_stat(os.getpid()) or ("", -1)
        return cls(socket.gethostname(), os.getpid(), _boot_id(), _pid_namespace(), start_ticks)

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "ProcessIdentity":
        """Reads what `record` made, also if all values are strings. Raises KeyError or ValueError for anything else."""
        return cls(
            str(record["host"]),
            _whole_number(record["pid"]),
            str(record.get("boot_id", "")),
            str(record.get("pid_namespace", "")),
            _whole_number(record.get("start_ticks", -1)),
        )

    def record(self) -> dict[str, str | int]:
        return {
            "host": self.host,
            "pid": self.pid,
            "boot_id": self.boot_id,
            "pid_namespace": self.pid_namespace,
            "start_ticks": self.start_ticks,
        }

    def is_gone(self) -> bool:
        """Tells whether the process has ended: True only if that is certain."""
        if self.host != socket.gethostname():
            return False
        if self.boot_id and _boot_id() and self.boot_id != _boot_id():
            return True
        if self.pid_namespace and self.pid_namespace != _pid_namespace():
            return False
        stat = _read_stat(self.pid)
        if stat is None:
            return _nobody_has(self.pid)
        state, start_ticks = stat
        return state in _ENDED or (bool(self.boot_id) and self.start_ticks not in (-1, start_ticks))


def _whole_number(value: object) -> int:
    if not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _read_stat(pid: int) -> tuple[str, int] | None:
    """Returns a process's state, and the ticks from the boot to its start, or None if they cannot be read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        # The name before the bracket may hold anything.
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_START_TICKS])
    except (OSError, IndexError, ValueError):
        return None


def _nobody_has(pid: int) -> bool:
    """Tells whether no process has this pid. Other users' processes may be hidden from /proc, so a signal asks."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115 - no path: "pid:[4026531836]"
    except OSError:
        return ""
