"""Which process something belongs to: a pid, and what tells it from a later process with the same pid.

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
_STATE, _START_TICKS = 0, 19  # places in /proc/PID/stat after the name: its fields 3 and 22
_ENDED = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    host: str
    pid: int
    boot_id: str = ""  # empty, and -1: not known
    pid_namespace: str = ""
    start_ticks: int = -1

    @classmethod
    def mine(cls) -> "ProcessIdentity":
        _, start_ticks = _stat(os.getpid()) or ("", -1)
        return cls(socket.gethostname(), os.getpid(), _boot_id(), _pid_namespace(), start_ticks)

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "ProcessIdentity":
        """Of what `record` made, also where all values are strings. Raises KeyError or ValueError for anything else."""
        return cls(
            str(record["host"]),
            _whole(record["pid"]),
            str(record.get("boot_id", "")),
            str(record.get("pid_namespace", "")),
            _whole(record.get("start_ticks", -1)),
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
        """True only where it is certain that the process has ended."""
        if self.host != socket.gethostname():
            return False
        if self.boot_id and _boot_id() and self.boot_id != _boot_id():
            return True
        if self.pid_namespace and self.pid_namespace != _pid_namespace():
            return False
        stat = _stat(self.pid)
        if stat is None:
            return _nobody_has(self.pid)
        state, start_ticks = stat
        return state in _ENDED or (bool(self.boot_id) and self.start_ticks not in (-1, start_ticks))


def _whole(value: object) -> int:
    if not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _stat(pid: int) -> tuple[str, int] | None:
    """A process's state, and the ticks from the boot to its start; None where they cannot be read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        return fields[_STATE], int(fields[_START_TICKS])
    except (OSError, IndexError, ValueError):
        return None


def _nobody_has(pid: int) -> bool:
    """Other users' processes may be hidden from /proc."""
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
