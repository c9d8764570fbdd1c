"""What a command uses of this machine: processes, memory and disk, as /proc and the file system tell.

Invariants:
- One pass over /proc serves all commands. What it costs grows with the processes of this machine.
- Memory is what a command's processes hold together: their own pages, shared ones once, files of memory (memfd) and its
  /dev/shm. What only the kernel knows (buffers of pipes and sockets, System V segments that nobody has attached) is
  not in it.
- Nothing here raises for a process or a file that is gone.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    session: int
    resident_bytes: int  # pages that it shares are counted in each


class Processes:
    """All of this machine, at one moment."""

    def __init__(self) -> None:
        self._all = {process.pid: process for process in map(_process, _pids()) if process is not None}
        self._children: dict[int, list[int]] = {}
        self._sessions: dict[int, list[int]] = {}
        for process in self._all.values():
            self._children.setdefault(process.parent, []).append(process.pid)
            self._sessions.setdefault(process.session, []).append(process.pid)

    def of(self, leader: int) -> list[Process]:
        """The process `leader`, its session, and all that descend from them."""
        found: set[int] = set()
        waiting = [leader, *self._sessions.get(leader, ())]
        while waiting:
            pid = waiting.pop()
            if pid in self._all and pid not in found:
                found.add(pid)
                waiting += self._children.get(pid, ())
        return [self._all[pid] for pid in found]


def _pids() -> Iterable[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - names alone
    return ()


def _process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        fields = text[text.rindex(b")") + 2 :].split()  # the name before may hold anything
        return Process(pid, int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE_BYTES)
    except (OSError, ValueError, IndexError):
        return None


def memory_bytes(processes: Iterable[Process], enough_bytes: int, *, own_shm: bool) -> int:
    """What they hold together; told roughly, and too high, as long as that is below `enough_bytes`.

    `own_shm`: their /dev/shm is theirs alone.
    """
    processes = list(processes)
    unmapped = _memory_files(processes) + (_shared_memory(processes) if own_shm else 0)
    rough = unmapped + sum(process.resident_bytes for process in processes)
    if rough <= enough_bytes:
        return rough
    pages = [_pages(process) for process in processes]
    return sum(own for own, _ in pages) + max(unmapped, sum(shared for _, shared in pages))


def _pages(process: Process) -> tuple[int, int]:
    """Bytes of its own, and its part of shared memory; pages of files on a disk can be dropped and are in neither."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return sizes["Pss_Anon"], sizes["Pss_Shmem"]
    except (OSError, ValueError, IndexError, KeyError):
        return process.resident_bytes, 0


def _memory_files(processes: Iterable[Process]) -> int:
    """Files of memory that have no name; each counts once, however many have it open."""
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
    """The fullest /dev/shm that one of them sees: the others see the same, or this host's, before they are inside."""
    host = _device("/dev/shm")
    used = 0
    for process in processes:
        path = os.path.join("/proc", str(process.pid), "root", "dev", "shm")  # noqa: PTH118
        with contextlib.suppress(OSError):
            if _device(path) != host:
                found = os.statvfs(path)
                return (found.f_blocks - found.f_bfree) * found.f_frsize
    return used


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - the hot path
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class DiskUse:
    size_bytes: int = 0
    files: int = 0

    def __sub__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.size_bytes - other.size_bytes, self.files - other.files)

    def __add__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.size_bytes + other.size_bytes, self.files + other.files)

    def is_over(self, limit: "DiskUse") -> bool:
        return self.size_bytes > limit.size_bytes or self.files > limit.files


def disk_use(folder: Path) -> DiskUse:
    """Of all below a folder, links not followed; folders count as files."""
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


def filled(folder: Path) -> DiskUse:
    """Of the whole file system that holds `folder`: cheap. Zero where it does not tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return DiskUse()
    return DiskUse((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)
