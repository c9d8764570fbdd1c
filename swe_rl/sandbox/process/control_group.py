"""This module makes control groups of Linux (version 2), one for each sandbox, where this user may make them.

Invariants:
- Nothing outside of the groups made here is changed or moved: they are made below the nearest group above this process
  that already hands memory and processes to groups below it, and that this user may write to. With systemd that is the
  user's own (`systemd-run --user --scope` puts a shell below it). For root there is nearly always one.
- A group's name starts with the number of the process that made it. The next run removes the groups of dead processes.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.files.lines import lines_of

ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NEEDED = frozenset({"memory", "pids"})  # These controllers count what a sandbox is limited in.
_PREFIX = "swe_rl-"  # The groups that swe_rl makes begin so, and only those are removed.
_LAUNCHER_PROCESSES = 3  # These are bwrap, the namespace's first process, and the one that sets the limits.


class ControlGroups:
    """This makes groups below `parent`, which `usable_parent` finds, and removes those of dead processes."""

    def __init__(self, parent: Path, config: SandboxConfig) -> None:
        self._parent = parent
        self._limits = {
            "memory.max": str(int(config.memory_gb * 1024**3)),
            "pids.max": str(config.max_processes + _LAUNCHER_PROCESSES),
        }
        self._wished = {"memory.swap.max": "0", "memory.oom.group": "1"}  # Not every kernel has these.
        self._remove_dead()

    def make(self, name: str) -> "ControlGroup":
        """Returns a new group with its limits. Raises OSError."""
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
    """This counts how often a group reached its own limit (`full`), and how many processes the kernel ended in it.

    Where the host's memory is full, the kernel may end a process, too, but that is not counted in `full`.
    """

    full: int
    ended: int

    def are_more_than(self, before: "Kills") -> bool:
        """Tells whether the group's own limit ended a process since `before`."""
        return self.full > before.full and self.ended > before.ended


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """This is the group of one sandbox."""

    folder: Path

    def entered(self, argv: list[str], bash: str) -> list[str]:
        """Returns the command line that runs `argv` in the group, from its start."""
        return [bash, "-p", "-c", 'echo 0 > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def kills(self) -> "Kills":
        """Returns the counts so far, which are 0 where the kernel does not tell."""
        with contextlib.suppress(OSError, ValueError):
            lines = lines_of((self.folder / "memory.events").read_text(), ends=False)
            counts = {name: int(count) for name, _, count in (line.partition(" ") for line in lines)}
            return Kills(counts.get("oom", 0), counts.get("oom_kill", 0))
        return Kills(0, 0)

    def remove(self) -> None:
        """Removes the group; one that still has processes stays until the next run."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def usable_parent(root: Path = ROOT, membership: Path = _OWN) -> Path | str:
    """Returns a group below which ours can be made, or the reason why there is none."""
    if not (root / "cgroup.controllers").is_file():
        return "this host has no control groups of version 2"
    try:
        [path] = [line[3:] for line in lines_of(membership.read_text(), ends=False) if line.startswith("0::")]
    except (OSError, ValueError):
        return "this process is in no control group of version 2"
    here = root / path.strip("/")
    for group in [here, *here.parents]:
        if group != root and root not in group.parents:
            break
        if _read_words(group / "cgroup.subtree_control") >= _NEEDED and _is_ours(group):
            return group
    return "no control group above this process is this user's and has memory and processes"


def _is_ours(group: Path) -> bool:
    """Tells whether this user can make groups in it, and can move processes into them from this one's group."""
    return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)


def _read_words(file: Path) -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(file.read_text().split())
    return frozenset()
