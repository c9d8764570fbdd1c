"""`python -m swe_rl` in a process of its own: from nothing, or forked from one that has its imports done."""

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.spare import RANKS, at_import
from tests.support.warm import LINE_BYTES

ROOT = Path(__file__).parents[2]
LIGHT = ("swe_rl.cli.launch", "swe_rl.job.check", "swe_rl.job.plan", "swe_rl.job.describe", "hydra.main", "rich.table")
HEAVY = (
    *LIGHT,
    "swe_rl.job.train",
    "swe_rl.job.serve",
    "swe_rl.engine.embedded.engine",
    "swe_rl.trainer.rank_trainer",
    "swe_rl.sandbox.process.provider",
    "swe_rl.agent.bash",
    "swe_rl.report.page",
    "torch.optim",
    *RANKS,
    "transformers.models.auto.tokenization_auto",
    "swe_rl.config.hydra_callback",
)

_CALLERS = 64  # processes of pytest that call before the first one is answered


class Started:
    """As much of `subprocess.Popen` as tests use, of a process that is no child of ours."""

    def __init__(self, report: int, stdout: int, stderr: int) -> None:
        self._report = os.fdopen(report, "rb", buffering=0)
        number = self._report.readline()
        assert number, "the process that forks commands has ended: its standard error says why"
        self._reported = select.poll()  # of any descriptor; `select` takes the first 1024
        self._reported.register(self._report, select.POLLIN)
        self.pid = int(number)
        self.stdout = os.fdopen(stdout, encoding="utf-8")
        self.stderr = os.fdopen(stderr, encoding="utf-8")
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("swe_rl", timeout)
        return self.returncode

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._reported.poll(None if timeout_s is None else 1000 * timeout_s):
            with self._lock:
                if self.returncode is None:
                    self.returncode = int(self._report.readline() or -signal.SIGKILL)
                    self._report.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        said: dict[str, str] = {"stdout": "", "stderr": ""}

        def read(name: str) -> None:
            if not getattr(self, name).closed:
                said[name] = getattr(self, name).read()

        readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in said]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("swe_rl", timeout)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for name in said:
            getattr(self, name).close()
        return said["stdout"], said["stderr"]

    def completed(self, timeout_s: float) -> subprocess.CompletedProcess:
        """As `subprocess.run` returns it."""
        stdout, stderr = self.communicate(timeout_s)
        return subprocess.CompletedProcess(("swe_rl",), self.returncode, stdout, stderr)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """Starts commands by forking a process that has `modules` imported. What it cannot copy it does not start: None.

    All processes of one pytest share it, as its imports take five seconds of a core: whoever asks first starts it.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        environ = environ_of_session()
        self._environ = at_import(environ)
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"of {os.getpid()}")
        settings = json.dumps([modules, sorted(self._environ.items())])
        address = f"\0swe_rl warm {session} {hashlib.sha256(settings.encode()).hexdigest()[:16]}"
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while self._requests.connect_ex(address):
            self._serve(address, modules, environ)

    def _serve(self, address: str, modules: tuple[str, ...], environ: dict[str, str]) -> None:
        """Starts the process that serves at `address`, unless another one of pytest does just that."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError:
                time.sleep(0.01)
                return
            listener.listen(_CALLERS)
            words = [sys.executable, "-m", "tests.support.warm", str(listener.fileno()), " " * LINE_BYTES, *modules]
            self._server = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**environ, **self._environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(
        self,
        arguments: list[str],
        cwd: Path,
        environ: dict[str, str],
        code: str = "",
        streams: tuple[int | None, int | None] = (None, None),
        kept: tuple[int, ...] = (),
    ) -> Started | None:
        """`streams`: descriptors of the caller's for standard output and error, in place of a pipe that we read.
        `kept`: others, whose numbers there `code` finds in KEPT."""
        elsewhere = Path(environ.get("PYTHONPATH", "").partition(":")[0] or ROOT).resolve() != ROOT
        if elsewhere or at_import(environ) != self._environ:
            return None
        request = {"arguments": arguments, "cwd": str(cwd), "environ": environ, "code": code}
        pipes = [os.pipe() for _ in range(3)]
        given = [stream if stream is not None else pipe[1] for stream, pipe in zip(streams, pipes, strict=False)]
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*given, pipes[2][1], *kept])
        for _, writing in pipes:
            os.close(writing)
        return Started(pipes[2][0], pipes[0][0], pipes[1][0])


@cache
def environ_of_session() -> dict[str, str]:
    """As it was when it was first asked for: what tests set later is not for all of them."""
    return dict(os.environ)


@cache
def warm(modules: tuple[str, ...]) -> Warm:
    """One of a kind for this process of pytest; what it calls ends with the last of us."""
    return Warm(modules)
