"""Watches what commands use, and asks for the end of one that uses more than its sandbox may.

Invariants:
- A look costs at most a tenth of the time of one core, however many commands run: the more a look takes, the longer
  the pause before the next. A command that ends before the first look costs nothing.
- A folder is walked only when its file system has grown by as much as the sandbox may still write, and every
  `_WALK_S` where that is hidden by what others remove.
- The end of a command is the policy's doing, and its result says what it used: no failure of infrastructure.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process.launcher import Launcher
from swe_rl.sandbox.process.usage import DiskUse, Process, Processes, disk_use, filled, memory_bytes

_log = logging.getLogger(__name__)
_EVERY_S = 0.5
_PAUSE_PER_LOOK = 9.0
_WALK_S = 30.0
_GIB = 1024**3
_FILES_PER_GB = 65536  # one for 16 KiB, as ext4 has them
_LAUNCHER_PROCESSES = 3  # bwrap, the namespace's first process, and what sets the limits


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one sandbox may use; None: somebody else counts that, or nobody."""

    memory_bytes: int | None
    processes: int | None
    disk: DiskUse | None  # beyond what its folder began with


def bounds_of(config: SandboxConfig, *, by_kernel: bool) -> Bounds:
    """`by_kernel`: memory and processes are a control group's business."""
    files = int(config.disk_gb * _FILES_PER_GB)
    return Bounds(
        memory_bytes=None if by_kernel else int(config.memory_gb * _GIB),
        processes=None if by_kernel else config.max_processes,
        disk=DiskUse(int(config.disk_gb * _GIB), files) if config.disk_gb else None,
    )


def say_bounds(config: SandboxConfig, launcher: Launcher, no_group: str, warn: Callable[[str], None]) -> None:
    """What bounds sandboxes here, in run.log; `warn` hears what nothing bounds although commands are isolated.

    `no_group`: why the kernel counts neither memory nor processes; empty where it does.
    """
    how = f"a look at them every {_EVERY_S:g} s ({no_group})" if no_group else "the kernel"
    disk = "a look at it" if config.disk_gb else "nothing (sandbox.disk_gb=0)"
    missing = [*(() if _can_look() or not no_group else ("memory and processes together",)), *launcher.unbounded]
    if not _can_look():
        missing.append("disk")
    not_bounded = f"; not bounded on this machine: {', '.join(missing)}" if missing else ""
    _log.info("sandboxes: memory and processes are bounded by %s, disk by %s%s", how, disk, not_bounded)
    if missing and launcher.isolated:
        warn(f"warning: not bounded in sandboxes on this machine: {', '.join(missing)} (docs/sandboxes.md)")


def _can_look() -> bool:
    return Path("/proc/self/stat").exists()


@dataclass(eq=False, slots=True)
class Folder:
    """A sandbox's folder between its commands: what it held when it was last looked at."""

    path: Path
    began: DiskUse
    found: DiskUse
    filled: DiskUse
    walked_s: float


@dataclass(eq=False, slots=True)
class Watched:
    leader: int
    folder: Folder
    isolated: bool
    over: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Watcher:
    """Of all sandboxes of a provider. `clock`: seconds."""

    def __init__(
        self, bounds: Bounds, *, clock: Callable[[], float] = time.monotonic, every_s: float = _EVERY_S
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._every_s = every_s
        self._watched: set[Watched] = set()
        self._task: asyncio.Task[None] | None = None

    def folder(self, path: Path) -> Folder:
        """Of a new sandbox, as it begins; walks it where disk is bounded."""
        began = disk_use(path) if self._bounds.disk else DiskUse()
        return Folder(path, began, began, filled(path), self._clock())

    def watch(self, leader: int, folder: Folder, *, isolated: bool) -> Watched:
        """`over` of what comes back resolves with what the command used too much of. Forget it at its end."""
        watched = Watched(leader, folder, isolated)
        self._watched.add(watched)
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_on())
        return watched

    def forget(self, watched: Watched) -> None:
        self._watched.discard(watched)
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_on(self) -> None:
        pause_s = self._every_s
        while True:
            await asyncio.sleep(pause_s)
            waiting = [one for one in self._watched if not one.over.done()]
            found, took_s = await asyncio.to_thread(self._look, waiting)
            for one, reason in found:
                if not one.over.done():
                    one.over.set_result(reason)
            pause_s = max(self._every_s, _PAUSE_PER_LOOK * took_s)

    def _look(self, watched: list[Watched]) -> tuple[list[tuple[Watched, str]], float]:
        """Who is over, and the seconds of a core that it took to find out."""
        began_s = time.thread_time()
        found: list[tuple[Watched, str]] = []
        counts = self._bounds.memory_bytes is not None or self._bounds.processes is not None
        processes = Processes() if counts else None
        for one in watched:
            reason = self._too_much(one, processes.of(one.leader)) if processes else ""
            reason = reason or self._too_full(one.folder)
            if reason:
                found.append((one, reason))
        return found, time.thread_time() - began_s

    def _too_much(self, watched: Watched, processes: list[Process]) -> str:
        limit, most = self._bounds.memory_bytes, self._bounds.processes
        if most is not None and (count := len(processes) - _LAUNCHER_PROCESSES) > most:
            return f"{count} processes, and it may have {most} (sandbox.max_processes)"
        if limit is None or (used := memory_bytes(processes, limit, own_shm=watched.isolated)) <= limit:
            return ""
        return f"{used / _GIB:.2f} GB of memory, and it may use {limit / _GIB:g} GB (sandbox.memory_gb)"

    def _too_full(self, folder: Folder) -> str:
        limit = self._bounds.disk
        if limit is None:
            return ""
        now, now_s = filled(folder.path), self._clock()
        possible = folder.found - folder.began + (now - folder.filled)
        if not possible.is_over(limit) and now_s - folder.walked_s < _WALK_S:
            return ""
        folder.found, folder.filled, folder.walked_s = disk_use(folder.path), now, now_s
        grown = folder.found - folder.began
        if not grown.is_over(limit):
            return ""
        return (
            f"{grown.size_bytes / _GIB:.2f} GB of disk in {grown.files} files, and it may write "
            f"{limit.size_bytes / _GIB:g} GB in {limit.files} files (sandbox.disk_gb)"
        )
