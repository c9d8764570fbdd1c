"""Control groups of Linux (version 2), one for each sandbox, where this user may make them.

Invariants:
- Nothing outside of the groups made here is changed or moved: they are made below the nearest group above this process
  that already hands memory and processes to groups below it, and that this user may write to. With systemd that is the
  user's own (`systemd-run --user --scope` puts a shell below it); for root it is nearly always there.
- A group's name starts with the number of the process that made it; the next run removes those of dead ones.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import SandboxConfig

ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NEEDED = frozenset({"memory", "pids"})
_PREFIX = "swe_rl-"
_LAUNCHER_PROCESSES = 3  # bwrap, the namespace's first process, and what sets the limits


class ControlGroups:
    """Below `parent`; see `usable_parent`."""

    def __init__(self, parent: Path, config: SandboxConfig) -> None:
        self._parent = parent
        self._limits = {
            "memory.max": str(int(config.memory_gb * 1024**3)),
            "pids.max": str(config.max_processes + _LAUNCHER_PROCESSES),
        }
        self._wished = {"memory.swap.max": "0", "memory.oom.group": "1"}  # not in every kernel
        self._remove_dead()

    def make(self, name: str) -> "ControlGroup":
        """Raises OSError."""
        folder = self._parent / f"{_PREFIX}{os.getpid()}-{name}"
        folder.mkdir()
        for file, value in self._limits.items():
            (folder / file).write_text(value)
        for file, value in self._wished.items():
            with contextlib.suppress(OSError):
                (folder / file).write_text(value)
        return ControlGroup(folder)

    def _remove_dead(self) -> None:
        for folder in self._parent.glob(f"{_PREFIX}*"):
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


@dataclass(frozen=True, slots=True)
class Kills:
    """A group's own limit was reached, and the kernel ended something in it: what ends for the host's is no `full`."""

    full: int
    ended: int

    def are_more_than(self, before: "Kills") -> bool:
        return self.full > before.full and self.ended > before.ended


@dataclass(frozen=True, slots=True)
class ControlGroup:
    folder: Path

    def entered(self, argv: list[str], bash: str) -> list[str]:
        """The command line that runs `argv` in the group, from its start."""
        return [bash, "-p", "-c", 'echo 0 > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def kills(self) -> "Kills":
        with contextlib.suppress(OSError, ValueError):
            lines = (self.folder / "memory.events").read_text().splitlines()
            counts = {name: int(count) for name, _, count in (line.partition(" ") for line in lines)}
            return Kills(counts.get("oom", 0), counts.get("oom_kill", 0))
        return Kills(0, 0)

    def remove(self) -> None:
        """A group that still has processes stays until the next run."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def usable_parent(root: Path = ROOT, membership: Path = _OWN) -> Path | str:
    """A group for ours to be below, or why there is none."""
    if not (root / "cgroup.controllers").is_file():
        return "this host has no control groups of version 2"
    try:
        [path] = [line[3:] for line in membership.read_text().splitlines() if line.startswith("0::")]
    except (OSError, ValueError):
        return "this process is in no control group of version 2"
    here = root / path.strip("/")
    for group in [here, *here.parents]:
        if group != root and root not in group.parents:
            break
        if _words(group / "cgroup.subtree_control") >= _NEEDED and _is_ours(group):
            return group
    return "no control group above this process is this user's and has memory and processes"


def _is_ours(group: Path) -> bool:
    """Groups can be made in it, and processes moved into them from this one's."""
    return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)


def _words(file: Path) -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(file.read_text().split())
    return frozenset()
