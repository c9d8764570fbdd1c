"""The process that ranks are forked from, without its imports: forked itself from one that has them done.

`swe_rl.trainer.ranks.forked` starts a new interpreter for it, which imports torch and transformers for seconds of a
core. A command that was forked gets a child before it begins, which waits to become that process; a process of pytest,
which has threads, asks the one that forks commands. Commands that are `cold` start the interpreter.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.config.folders import PACKAGE
from swe_rl.trainer.ranks import forked
from swe_rl.trainer.ranks.fork_server import BOOT
from swe_rl.trainer.ranks.rank import DRIVERS_SIGNALS

RANKS = (
    *forked._MODULES,
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
)
SPARE = "tests.support.spare"  # in the command line of one that waits
REQUEST_BYTES = 1 << 20
# Read when something is imported: where one differs, what was imported is not what the process would have.
_READ_AT_IMPORT = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "HF_", "TRANSFORMERS_", "LD_", "LC_", "LANG")
_READ_WHEN_USED = {"PYTHONPATH", "TRANSFORMERS_NO_ADVISORY_WARNINGS"}  # the second is set by whoever loads a model
_LOOK_S = 0.01
_SPARES = 2  # a trainer is started again where a rank was lost
_MODULES, _PATH = 3, 4  # places in the words of a fork server
_SERVE = "import sys; from tests.support.spare import serve; serve(sys.argv[1:], KEPT[0])"

Interpreter = Callable[[Sequence[str], int, int | None], Any]  # what it returns has some of Popen's methods


class Child:
    """A child of this process that was forked: as much of Popen as there is use for. Any thread may ask and kill."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(_LOOK_S)
        return self.returncode

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:  # else its number may be another's
                os.kill(self.pid, signal.SIGKILL)


def at_import(environ: Mapping[str, str]) -> dict[str, str]:
    read = {name: value for name, value in environ.items() if name.startswith(_READ_AT_IMPORT)}
    return {name: value for name, value in read.items() if name not in _READ_WHEN_USED} | {"OMP_NUM_THREADS": "1"}


def write_line(words: Sequence[str]) -> None:
    """Into /proc/self/cmdline, where tests look for what is left of a run."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def take_over(request: Mapping) -> None:
    """Of whoever asked for this process: streams, folder, environment."""
    for number, stream in zip((1, 2), request["streams"], strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])


def keep_spares(arguments: Sequence[str]) -> None:
    """For a forked command, before it has a second thread: its first fork servers are children that wait already.

    `arguments`: the command's, by which tests find what is left of it.
    """
    interpreter, path, environ = forked._start_interpreter, frozenset(sys.path), at_import(os.environ)
    spares: list[tuple[int, socket.socket]] = []
    for _ in range(_SPARES):
        spares.append(_spare(arguments, [requests for _, requests in spares]))

    def start(words: Sequence[str], kept: int, output: int | None) -> Any:
        if not spares or not _can_be_forked(words, path) or at_import(os.environ) != environ:
            return interpreter(words, kept, output)
        pid, requests = spares.pop(0)
        request = {"words": list(words), "cwd": str(Path.cwd()), "environ": dict(os.environ)}
        outputs = [output] * 2 if output is not None else [1, 2]
        with requests:
            try:
                socket.send_fds(requests, [json.dumps(request).encode()], [kept, *outputs])
            except BrokenPipeError:  # it was killed
                return interpreter(words, kept, output)
        return Child(pid)

    forked._start_interpreter = start


def _spare(arguments: Sequence[str], earlier: Sequence[socket.socket]) -> tuple[int, socket.socket]:
    """`earlier`: the command's ends of other spares' sockets; each of those ends when nobody holds them any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        for one in (ours, *earlier):
            one.close()
        write_line([sys.executable, "-m", SPARE, *arguments])
        _wait(theirs)
    theirs.close()
    return pid, ours


def _can_be_forked(words: Sequence[str], path: Collection[str]) -> bool:
    """Whether its imports are those that were done: it looks for them in no other folder than those of `path`. What is
    not in RANKS the fork imports for itself."""
    return set(words[_PATH:]) <= {"", str(PACKAGE.parent), *path} and "torch" in words[_MODULES].split(",")


def ask_for_each(modules: tuple[str, ...]) -> Interpreter:
    """For a process of pytest: what starts a fork server by the process that has `modules` imported."""
    from tests.support.command import warm

    interpreter, path = forked._start_interpreter, frozenset(sys.path)

    def start(words: Sequence[str], kept: int, output: int | None) -> Any:
        streams = (1, 2) if output is None else (output, output)
        made = None
        if _can_be_forked(words, path):
            made = warm(modules).start(list(words), Path.cwd(), dict(os.environ), _SERVE, streams, kept=(kept,))
        return made or interpreter(words, kept, output)

    return start


def _wait(requests: socket.socket) -> None:
    """In the child: until it is needed, or never."""
    signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_SIGNALS)
    for stream in (1, 2):
        os.dup2(0, stream)  # else whoever reads what the command prints would wait for us as well
    text, given, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 3)
    if not text:
        os._exit(0)
    request = json.loads(text)
    take_over(request | {"streams": given[1:]})
    requests.close()
    serve(request["words"], given[0])


def serve(words: list[str], kept: int) -> None:
    """This process becomes the fork server, and its forks ranks. Does not return."""
    for number in DRIVERS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_SIGNALS)
    words[1:3] = [str(kept), str(os.getppid())]
    sys.argv = ["-c", *words]
    sys.orig_argv = [sys.executable, "-c", BOOT, *words]
    write_line(sys.orig_argv)
    try:
        exec(compile(BOOT, "<string>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
