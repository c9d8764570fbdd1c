"""This module finds and kills what a command started, where no pid namespace does so.

Invariants:
- A process belongs to a command when its environment carries the command's marker, when it is in the command's
  session, when its parent belongs to it, or when it carries no marker and works in the sandbox's folder. One that
  avoids all four can get away; only bubblewrap closes that door.
- Only processes that started after the command are looked at, so an unrelated process is never killed.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from swe_rl.files.lines import lines_of

MARKER = "SWE_RL_SANDBOX"  # The value of this variable starts with the sandbox's folder.
# A process may start others while it is being killed, so rounds go on until one finds nobody.
_ROUNDS = 40
_ROUND_S = 0.005  # Processes get so long to die before the next round.


def kill_group(pid: int) -> None:
    """Sends SIGKILL to the process group led by `pid`, which must not have been reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def group_members(leader: int) -> list[int]:
    """Returns the pids that are left of the process group that `leader` led, without zombies."""
    return [process.pid for process in _living_processes(psutil.pids()) if _process_group(process.pid) == leader]


def kill_command(leader: int, marker: str, before: frozenset[int]) -> None:
    """Kills all that the command led by `leader` started; `before` are the pids from before it."""
    for _ in range(_ROUNDS):
        if not _kill_processes(_find_members(leader, marker, _living_processes(set(psutil.pids()) - before))):
            return
        time.sleep(_ROUND_S)


def kill_marked(prefix: str) -> None:
    """Kills every process of this user whose marker starts with `prefix` (a folder), and each bwrap that shows it.

    A bwrap whose starter was killed while it set up waits for ever, before it has run anything.
    """
    for _ in range(_ROUNDS):
        if not _kill_processes([process for process in psutil.process_iter() if _is_below(process, prefix)]):
            return
        time.sleep(_ROUND_S)


def first_inside(pid: int) -> int | None:
    """Returns the first process of the pid namespace that `pid`, or a process below it, has made.

    It is None where there is no such process, or none yet.
    """
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return None
    return next((process.pid for process in below if _own_number(process.pid) == 1), None)


def _own_number(pid: int) -> int | None:
    """Returns the number of a process in its innermost pid namespace, or None where that is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return int(lines_of(status.partition("NSpid:")[2], ends=False)[0].split()[-1])
    return None


def _living_processes(pids: Iterable[int]) -> list[psutil.Process]:
    living = []
    for pid in pids:
        if pid == os.getpid():
            continue
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except psutil.Error:
            continue
    return living


def _find_members(leader: int, marker: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    folder = marker.rpartition(os.sep)[0] + os.sep
    members = {p.pid: p for p in processes if _session_id(p.pid) == leader or _is_its_own(p, marker, folder)}
    grown = True
    while grown:
        children = {p.pid: p for p in processes if p.pid not in members and _parent_pid(p) in members}
        members |= children
        grown = bool(children)
    return list(members.values())


def _kill_processes(processes: list[psutil.Process]) -> bool:
    """Kills the processes. Returns True when there was something to kill."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    return bool(processes)


def _is_its_own(process: psutil.Process, marker: str, folder: str) -> bool:
    marked = _read_marker(process)
    if marked:
        return marked == marker
    return _read_workdir(process).startswith(folder)


def _read_workdir(process: psutil.Process) -> str:
    try:
        return str(process.cwd()) + os.sep
    except (psutil.Error, OSError):
        return ""


def _read_marker(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARKER, ""))
    except (psutil.Error, OSError):
        return ""


def _is_below(process: psutil.Process, prefix: str) -> bool:
    if _read_marker(process).startswith(prefix):
        return True
    try:
        return process.name() == "bwrap" and any(word.startswith(prefix) for word in process.cmdline())
    except (psutil.Error, OSError):
        return False


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _session_id(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _parent_pid(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return -1
