"""Runs one command and ends it, with everything it started, when the process that asked for it is gone.

A program of its own, `python guard.py GRACE_S COMMAND...`, with the standard library only: it must not depend on
what it guards. It leads its own process group; its standard input is a pipe whose other end the asking process holds.

Invariants:
- The end of the pipe, a new parent, SIGTERM or the command's own end: all lead to the same clean-up, after which no
  descendant is left, whatever process group or session it has moved to.
- Ends with the command's status; 128 + n for a signal.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LOOK_S = 1.0
_ROUND_S = 0.02
_KILL_ROUNDS = 250


def main(arguments: list[str]) -> int:
    grace_s, command = float(arguments[0]), arguments[1:]
    _prctl(_SET_CHILD_SUBREAPER, 1)  # orphans of the command become ours
    ask_to_end, wake = _signals()
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    status = _watch(child, parent, ask_to_end, wake)
    if status is None:
        child.terminate()
        status = _reap_until(child, time.monotonic() + grace_s)
    _kill_all()
    return child.wait() if status is None else status


def _signals() -> tuple[list[int], int]:
    """The signals that asked this process to end, so far; and a descriptor that becomes readable with any signal."""
    asked: list[int] = []
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # a scheduler's warnings go to every process; the command ignores
        signal.signal(number, signal.SIG_IGN)  # them with us, and is ended by whoever asked for it
    return asked, read


def _die_with_parent() -> None:
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _watch(child: "subprocess.Popen[bytes]", parent: int, asked: list[int], wake: int) -> int | None:
    """The command's status, or None when it should end."""
    while True:
        status = _reap(child)
        if status is not None:
            return status
        if asked or os.getppid() != parent:
            return None
        ready, _, _ = select.select([0, wake], [], [], _LOOK_S)
        if wake in ready:
            os.read(wake, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None


def _reap_until(child: "subprocess.Popen[bytes]", deadline_s: float) -> int | None:
    while time.monotonic() < deadline_s:
        status = _reap(child)
        if status is not None:
            return status
        time.sleep(_ROUND_S)
    return None


def _reap(child: "subprocess.Popen[bytes]") -> int | None:
    """The command's status once it has ended."""
    status = child.poll()
    if status is not None:
        return 128 - status if status < 0 else status
    return None


def _kill_all() -> None:
    """SIGKILL to every descendant until none is left; processes in the kernel are waited for, within reason."""
    for _ in range(_KILL_ROUNDS):
        _collect()
        pids = descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_S)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(root: int) -> list[int]:
    """Pids below `root`, from /proc; zombies are left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    below: list[int] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        below.append(pid)
        waiting += children.get(pid, ())
    return below


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
