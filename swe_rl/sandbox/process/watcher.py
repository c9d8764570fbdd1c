"""This module watches what commands use, and asks for the end of one that uses more than its sandbox may.

Invariants:
- A look costs at most a tenth of the time of one core, however many commands run: the more a look takes, the longer
  the pause before the next. A command that ends before the first look costs nothing.
- A folder is walked only when its file system has grown by as much as the sandbox may still write, and every
  `_WALK_S` where that is hidden by what others remove.
- The end of a command is the policy's doing, and no failure of infrastructure. Its result says what it used.
- One pass over /proc serves all commands. What it costs grows with the processes of this machine.
- Memory is what a command's processes hold together: their own pages, shared ones once, files of memory (memfd) and its
  /dev/shm. What only the kernel knows (buffers of pipes and sockets, System V segments that nobody has attached) is
  not in it.
- Nothing here raises for a process or a file that is gone.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.files.lines import lines_of
from swe_rl.sandbox.process.launcher import Launcher

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512  # `st_blocks` counts in this unit, whatever the file system's own block is.
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """This is one process at one moment."""

    pid: int
    parent: int
    session: int
    resident_bytes: int  # Pages that several processes share are counted in each.


class Processes:
    """These are all processes of this machine at one moment."""

    def __init__(self) -> None:
        self._all = {process.pid: process for process in map(_read_process, _list_pids()) if process is not None}
        self._children: dict[int, list[int]] = {}
        self._sessions: dict[int, list[int]] = {}
        for process in self._all.values():
            self._children.setdefault(process.parent, []).append(process.pid)
            self._sessions.setdefault(process.session, []).append(process.pid)

    def of(self, leader: int) -> list[Process]:
        """Returns the process `leader`, its session, and all that descend from them."""
        pids: set[int] = set()
        waiting = [leader, *self._sessions.get(leader, ())]
        while waiting:
            pid = waiting.pop()
            if pid in self._all and pid not in pids:
                pids.add(pid)
                waiting += self._children.get(pid, ())
        return [self._all[pid] for pid in pids]


def _list_pids() -> Iterable[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - names alone
    return ()


def _read_process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        fields = text[text.rindex(b")") + 2 :].split()  # The name before may hold anything.
        return Process(pid, int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE_BYTES)
    except (OSError, ValueError, IndexError):
        return None


def memory_bytes(processes: Iterable[Process], enough_bytes: int, *, own_shm: bool) -> int:
    """Returns the bytes that the processes hold together.

    The number is rough, and too high, as long as even so it is below `enough_bytes`. `own_shm` says that their /dev/shm
    is theirs alone.
    """
    processes = list(processes)
    unmapped = _memory_files(processes) + (_shared_memory(processes) if own_shm else 0)
    rough = unmapped + sum(process.resident_bytes for process in processes)
    if rough <= enough_bytes:
        return rough
    pages = [_read_memory(process) for process in processes]
    return sum(private for private, _ in pages) + max(unmapped, sum(shared for _, shared in pages))


def _read_memory(process: Process) -> tuple[int, int]:
    """Returns a process's own bytes, and its part of shared memory.

    Pages of files on a disk are in neither, because the kernel can drop them.
    """
    try:
        lines = lines_of(Path(f"/proc/{process.pid}/smaps_rollup").read_text(), ends=False)[1:]
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return sizes["Pss_Anon"], sizes["Pss_Shmem"]
    except (OSError, ValueError, IndexError, KeyError):
        return process.resident_bytes, 0


def _memory_files(processes: Iterable[Process]) -> int:
    """Returns the bytes of files of memory without a name; each counts once, however many have it open."""
    sizes: dict[tuple[int, int], int] = {}
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process.pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):  # noqa: PTH115 - the hot path
                        status = entry.stat()
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def _shared_memory(processes: Iterable[Process]) -> int:
    """Returns the bytes in the processes' own /dev/shm. Before they are inside, they still see this host's."""
    host = _device_of("/dev/shm")
    used = 0
    for process in processes:
        path = os.path.join("/proc", str(process.pid), "root", "dev", "shm")  # noqa: PTH118
        with contextlib.suppress(OSError):
            if _device_of(path) != host:
                status = os.statvfs(path)
                return (status.f_blocks - status.f_bfree) * status.f_frsize
    return used


def _device_of(path: str) -> int | None:
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - the hot path
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class DiskUse:
    """This is how much of a disk is used."""

    size_bytes: int = 0
    files: int = 0

    def __sub__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.size_bytes - other.size_bytes, self.files - other.files)

    def __add__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.size_bytes + other.size_bytes, self.files + other.files)

    def is_over(self, limit: "DiskUse") -> bool:
        """Tells whether there are more bytes or more files than the limit has."""
        return self.size_bytes > limit.size_bytes or self.files > limit.files


def disk_use(folder: Path) -> DiskUse:
    """Returns the use of all below a folder. Links are not followed, and folders count as files."""
    size_bytes = files = 0
    waiting = [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    size_bytes += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return DiskUse(size_bytes, files)


def filesystem_use(folder: Path) -> DiskUse:
    """Returns the use of the whole file system that holds `folder`, which is cheap. It is zero where that fails."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return DiskUse()
    return DiskUse((status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree)


_log = logging.getLogger(__name__)
_EVERY_S = 0.5  # There is a look so often, as long as looks are cheap.
# A pause is nine times as long as the look before it, so that looks take at most a tenth of the time.
_PAUSE_PER_LOOK = 9.0
# What others remove hides what a sandbox writes, so its folder is walked at least so often.
_WALK_S = 30.0
_GIB = 1024**3
_FILES_PER_GB = 65536  # This is a file for each 16 KiB, as ext4 has them.
_LAUNCHER_PROCESSES = 3  # These are bwrap, the namespace's first process, and the one that sets the limits.


@dataclass(frozen=True, slots=True)
class SandboxBounds:
    """This is what one sandbox may use. None means that somebody else counts that, or nobody does."""

    memory_bytes: int | None
    processes: int | None
    disk: DiskUse | None  # This is beyond what its folder began with.


def bounds_of(config: SandboxConfig, *, by_kernel: bool) -> SandboxBounds:
    """Returns the configured bounds. With `by_kernel`, memory and processes are a control group's business."""
    files = int(config.disk_gb * _FILES_PER_GB)
    return SandboxBounds(
        memory_bytes=None if by_kernel else int(config.memory_gb * _GIB),
        processes=None if by_kernel else config.max_processes,
        disk=DiskUse(int(config.disk_gb * _GIB), files) if config.disk_gb else None,
    )


def say_bounds(config: SandboxConfig, launcher: Launcher, no_group: str, warn: Callable[[str], None]) -> None:
    """Says in run.log what bounds sandboxes here; `warn` hears what nothing bounds although commands are isolated.

    `no_group` says why the kernel counts neither memory nor processes, and is empty where it does.
    """
    how = "the kernel"
    if no_group:
        how = f"a look at them every {_EVERY_S:g} s ({no_group})"
    disk = "nothing (sandbox.disk_gb=0)"
    if config.disk_gb:
        disk = "a look at it"
    missing = [*(() if _can_look() or not no_group else ("memory and processes together",)), *launcher.unbounded]
    if not _can_look():
        missing.append("disk")
    not_bounded = ""
    if missing:
        not_bounded = f"; not bounded on this machine: {', '.join(missing)}"
    _log.info("sandboxes: memory and processes are bounded by %s, disk by %s%s", how, disk, not_bounded)
    if missing and launcher.isolated:
        warn(f"warning: not bounded in sandboxes on this machine: {', '.join(missing)} (docs/sandboxes.md)")


def _can_look() -> bool:
    return Path("/proc/self/stat").exists()


@dataclass(eq=False, slots=True)
class Folder:
    """This is a sandbox's folder between its commands, with what it held when it was last looked at."""

    path: Path
    began: DiskUse
    size: DiskUse
    filled: DiskUse
    walked_s: float


@dataclass(eq=False, slots=True)
class Watched:
    """This is a command that is watched; `over` resolves with what it used too much of."""

    leader: int
    folder: Folder
    isolated: bool
    over: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Watcher:
    """This watches the commands of all sandboxes of a provider; `clock` returns seconds."""

    def __init__(
        self, bounds: SandboxBounds, *, clock: Callable[[], float] = time.monotonic, every_s: float = _EVERY_S
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._every_s = every_s
        self._watched: set[Watched] = set()
        self._task: asyncio.Task[None] | None = None

    def folder(self, path: Path) -> Folder:
        """Returns the folder of a new sandbox as it begins, and walks it where the disk is bounded."""
        if self._bounds.disk:
            began = disk_use(path)
        else:
            began = DiskUse()
        return Folder(path, began, began, filesystem_use(path), self._clock())

    def watch(self, leader: int, folder: Folder, *, isolated: bool) -> Watched:
        """Watches the command led by `leader`. The caller has to `forget` what is returned at the command's end."""
        watched = Watched(leader, folder, isolated)
        self._watched.add(watched)
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_on())
        return watched

    def forget(self, watched: Watched) -> None:
        """Ends the watch of a command."""
        self._watched.discard(watched)
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_on(self) -> None:
        pause_s = self._every_s
        said = False
        while True:
            await asyncio.sleep(pause_s)
            waiting = [command for command in self._watched if not command.over.done()]
            try:
                over_limits, took_s = await asyncio.to_thread(self._look, waiting)
            except Exception as error:
                # Whatever it is, commands without bounds would be worse than a late look.
                if not said:
                    _log.warning("sandboxes: a look at what commands use failed, the next follows: %r", error)
                said = True
                continue
            for command, reason in over_limits:
                if not command.over.done():
                    command.over.set_result(reason)
            pause_s = max(self._every_s, _PAUSE_PER_LOOK * took_s)

    def _look(self, watched: list[Watched]) -> tuple[list[tuple[Watched, str]], float]:
        """Returns the commands that are over, each with the reason, and the seconds of a core that the look took."""
        began_s = time.thread_time()
        over_limits: list[tuple[Watched, str]] = []
        counts = self._bounds.memory_bytes is not None or self._bounds.processes is not None
        processes = None
        if counts:
            processes = Processes()
        for command in watched:
            reason = ""
            if processes:
                reason = self._too_much(command, processes.of(command.leader))
            reason = reason or self._too_full(command.folder)
            if reason:
                over_limits.append((command, reason))
        return over_limits, time.thread_time() - began_s

    def _too_much(self, watched: Watched, processes: list[Process]) -> str:
        limit = self._bounds.memory_bytes
        most = self._bounds.processes
        if most is not None and (count := len(processes) - _LAUNCHER_PROCESSES) > most:
            return f"{count} processes, and it may have {most} (sandbox.max_processes)"
        if limit is None or (used := memory_bytes(processes, limit, own_shm=watched.isolated)) <= limit:
            return ""
        return f"{used / _GIB:.2f} GB of memory, and it may use {limit / _GIB:g} GB (sandbox.memory_gb)"

    def _too_full(self, folder: Folder) -> str:
        limit = self._bounds.disk
        if limit is None:
            return ""
        now = filesystem_use(folder.path)
        now_s = self._clock()
        possible = folder.size - folder.began + (now - folder.filled)
        if not possible.is_over(limit) and now_s - folder.walked_s < _WALK_S:
            return ""
        folder.size, folder.filled, folder.walked_s = disk_use(folder.path), now, now_s
        grown = folder.size - folder.began
        if not grown.is_over(limit):
            return ""
        return (
            f"{grown.size_bytes / _GIB:.2f} GB of disk in {grown.files} files, and it may write "
            f"{limit.size_bytes / _GIB:g} GB in {limit.files} files (sandbox.disk_gb)"
        )
