"""A process that has imported what a run imports, and becomes a run for each line that it reads: starts take no time.

    python -m tests.support.storm.warm MODULE...        # what it imports
    {"arguments": ["trainer.steps=3"], "environment": {...}, "folder": "/where", "log": "/where/log"}

It answers `{"started": PID}` and later `{"ended": PID, "status": N}`, N below 0 for a signal, as subprocess has it.

Invariants:
- Whatever a run leaves behind becomes a child of this process, so that nothing escapes who looks for leftovers.
"""

import ctypes
import json
import os
import select
import signal
import sys
from importlib import import_module
from typing import Any

_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LOOK_S = 0.02


def main() -> int:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for module in sys.argv[1:]:  # before any thread
        import_module(module)
    _say({"ready": os.getpid()})
    runs: set[int] = set()
    while True:
        ready, _, _ = select.select([0], [], [], _LOOK_S)
        if ready:
            line = _line()
            if line is None:
                return 0
            pid = os.fork()
            if pid == 0:
                return _become(json.loads(line))
            runs.add(pid)
            _say({"started": pid})
        for pid, status in _ended():
            if pid in runs:
                runs.discard(pid)
                _say({"ended": pid, "status": status})


def _become(asked: dict[str, Any]) -> int:
    """The run itself, in a session of its own; returns its exit status."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as at the start of Python
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["swe_rl", *asked["arguments"]]
    from swe_rl.__main__ import main as run

    return run()


def _line() -> str | None:
    """Unbuffered: what follows belongs to the next look."""
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        data += byte
    return data.decode()


def _ended() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
