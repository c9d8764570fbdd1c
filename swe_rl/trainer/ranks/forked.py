"""Starts ranks of this host and watches them: they are forked from a process that has done their imports.

Invariants:
- Nothing waits for the imports: a rank that is not yet there can be sent to, killed and waited for.
- What it prints before a rank is there goes to the log that is given.
- `close` leaves no server, and a server that is gone has no ranks.
"""

import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swe_rl.config.folders import PACKAGE
from swe_rl.files.disk import disk_error
from swe_rl.trainer.ranks.fork_server import BOOT
from swe_rl.trainer.ranks.rank import DRIVERS_SIGNALS

_MODULES = (
    "torch",
    "swe_rl.algo.foreign.loss",
    "swe_rl.trainer.ranks.rank",
    "swe_rl.trainer.sharded.assemble",
    "swe_rl.trainer.sharded.mesh",
    "transformers.models.auto.modeling_auto",
)
# Whoever waits for a rank looks this often whether another thread has closed its report meanwhile.
_LOOK_S = 0.5
# A server without ranks has this long to end; it does so at once, unless the machine is very busy.
_LEAVE_S = 5.0


class ForkServer:
    """The server for one start of ranks: it keeps the environment, the folder and the sys.path of this moment."""

    def __init__(self, modules: Sequence[str], log: Path | None) -> None:
        """Starts the server. `modules` is what it imports; `log` is where it prints, if not where this process does.

        Raises DiskError.
        """
        if log is None:
            output = None
        else:
            output = _open_log(log)
        self._requests, theirs = socket.socketpair()
        path = [*(str(folder) for folder in sys.path), str(PACKAGE.parent)]
        words = ["serve", str(theirs.fileno()), str(os.getpid()), ",".join(modules), *path]
        # What a rank ignores must not end its imports either; a child has the mask of the thread that starts it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_SIGNALS)
        try:
            self._process = _start_interpreter(words, theirs.fileno(), output)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            if output is not None:
                os.close(output)

    def start(self, work: Callable[..., Any], arguments: Sequence[Any]) -> "tuple[ForkedProcess, Connection]":
        """Starts a process that calls `work(*arguments, link)`. Returns it and this end of the link.

        Both arguments are pickled, so they should be small.
        """
        ours, theirs = multiprocessing.Pipe()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._requests, [b"r"], [theirs.fileno(), writing])
        except OSError:  # the server is gone, or has to go: `exitcode` waits for it
            self._process.kill()
        theirs.close()
        os.close(writing)
        with suppress(OSError):
            ours.send((work, tuple(arguments)))
        return ForkedProcess(reading, self._process), ours

    def close(self) -> None:
        """Kills the ranks that are left. May be called twice."""
        self._requests.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._process.kill()
        self._process.wait()


def _start_interpreter(words: Sequence[str], kept: int, output: int | None) -> "subprocess.Popen[bytes]":
    """Starts the interpreter of the server. It inherits the descriptor `kept` by its number."""
    return subprocess.Popen(
        [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", BOOT, *words],  # type: ignore[attr-defined]
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[kept],
    )


def _open_log(log: Path) -> int:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise disk_error(log, error) from error


class ForkedProcess:
    """As much of multiprocessing's processes as there is use for. Any thread may ask and kill."""

    def __init__(self, report: int, server: "subprocess.Popen[bytes]") -> None:
        os.set_blocking(report, False)
        self._report = report
        self._server = server
        # It has said its number and, in the end, its exit status.
        self._told = b""
        self._has_ended = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The number of the process, or 0 while there is none."""
        return next(iter(self._numbers()), 0)

    @property
    def exitcode(self) -> int | None:
        """The exit status, or None while it lives. A rank whose server is gone has that of the server."""
        numbers = self._numbers()
        if not self._has_ended:
            return None
        if len(numbers) > 1:
            return numbers[1]
        return self._server.wait()

    def is_alive(self) -> bool:
        self._numbers()
        return not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        if timeout is None:
            until = None
        else:
            until = time.monotonic() + timeout
        while self.is_alive() and (until is None or time.monotonic() < until):
            # `poll` takes any descriptor, `select` the first 1024 only.
            waits = select.poll()
            waits.register(self._report, select.POLLIN)
            if until is None:
                left_s = _LOOK_S
            else:
                left_s = min(_LOOK_S, max(0.0, until - time.monotonic()))
            # Another thread may have closed it meanwhile, and its number be another's.
            waits.poll(1000 * left_s)

    def kill(self) -> None:
        """Kills the process. One that is not yet there goes with its server, and so do all others."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL) if self.pid else self._server.kill()

    def _numbers(self) -> list[int]:
        with self._lock, suppress(BlockingIOError):
            while not self._has_ended:
                text = os.read(self._report, 64)
                self._told += text
                # A child of the rank may hold the other end open.
                if not text or self._told.count(b"\n") > 1:
                    self._has_ended = True
                    os.close(self._report)
        return [int(line) for line in self._told.split(b"\n")[:-1]]


def needed_by(model: str) -> tuple[str, ...]:
    """Returns the modules that a rank of this model imports.

    The module of the model's class is among them where transformers has it and the folder `model` is here. What is
    missing costs each rank the time of its import.
    """
    try:
        kind = json.loads((Path(model) / "config.json").read_text("utf-8"))["model_type"].replace("-", "_")
        # `find_spec` does not import it.
        library = find_spec("transformers")
        folders = None
        if library:
            folders = library.submodule_search_locations
        has_it = any(Path(folder, "models", kind, f"modeling_{kind}.py").is_file() for folder in folders or ())
        if has_it:
            return (*_MODULES, f"transformers.models.{kind}.modeling_{kind}")
        return _MODULES
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return _MODULES
