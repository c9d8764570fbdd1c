"""Runs one command and ends it, with everything it started, when the process that asked for it is gone.

It is a program of its own, `python guard.py GRACE_S COMMAND...`, with the standard library only: it must not depend on
what it guards. It leads its own process group; its standard input is a pipe whose other end the asking process holds.

Invariants:
- The end of the pipe, a new parent, SIGTERM or the command's own end: all lead to the same clean-up, after which no
  descendant is left, whatever process group or session it has moved to.
- It ends with the command's status; 128 + n for a signal.
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

# Both numbers are prctl(2)'s.
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0
_ROUND_S = 0.02
# Killing takes at most five seconds of rounds: what is still there is stuck in the kernel, and nobody can end it.
_KILL_ROUNDS = 250


def main(arguments: list[str]) -> int:
    grace_s = float(arguments[0])
    command = arguments[1:]
    # Orphans of the command become ours.
    _call_prctl(_SET_CHILD_SUBREAPER, 1)
    ask_to_end, wake = _collect_signals()
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    status = _watch_child(child, parent, ask_to_end, wake)
    if status is None:
        child.terminate()
        status = _reap_until(child, time.monotonic() + grace_s)
    _kill_all()
    if status is None:
        return child.wait()
    return status


def _collect_signals() -> tuple[list[int], int]:
    """Returns the signals that asked this process to end, so far, and a descriptor that any signal makes readable."""
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
    _call_prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _watch_child(child: "subprocess.Popen[bytes]", parent: int, asked: list[int], wake: int) -> int | None:
    """Returns the command's status, or None when it should end."""
    while True:
        status = _reap_child(child)
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
        status = _reap_child(child)
        if status is not None:
            return status
        time.sleep(_ROUND_S)
    return None


def _reap_child(child: "subprocess.Popen[bytes]") -> int | None:
    """Returns the command's status once it has ended, or None."""
    status = child.poll()
    if status is not None:
        if status < 0:
            return 128 - status
        return status
    return None


def _kill_all() -> None:
    """Sends SIGKILL to every descendant until none is left; processes in the kernel are waited for, within reason."""
    for _ in range(_KILL_ROUNDS):
        _collect_zombies()
        pids = list_descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_S)


def _collect_zombies() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def list_descendants(root: int) -> list[int]:
    """Returns the pids below `root`, from /proc; zombies are left out."""
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


def _call_prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
