"""Runs one `vllm serve` process: starts it, waits for it, ends it.

Invariants:
- It runs below a guard (`guard`), which ends it with all its children when this process dies, however it dies. What a
  guard that was killed has left is found by its marker.
- `stop` returns once nothing of it is left; it may be called at any time, and again.
- Its output goes to a log file of its own; what it says about its end is in the error.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.vllm import guard as vllm_guard
from swe_rl.engine.vllm.log import Cause, Diagnosis, diagnose_start, last_line, read_tail
from swe_rl.files.disk import disk_error
from swe_rl.sandbox.process_tree import MARKER, kill_marked

_LOOK_S = 0.5
_TELL_EVERY_S = 15.0
# The guard has this long to finish after its grace.
_KILL_AFTER_S = 10.0


class ServerDiedError(EngineError):
    """The server's process ended; `cause` is what its log says."""

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How a server is started. `step` comes before the command where it runs on another node (see `step`).

    `api_key` is for the look at its health.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    url: str
    step: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)


class VllmServer:
    def __init__(
        self,
        launch: ServerLaunch,
        log: Path,
        *,
        name: str,
        start_timeout_s: float,
        stop_timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.url = launch.url
        self.log = log
        self._launch = launch
        self._name = name
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The pid of the guard, which leads the server's process group."""
        if self._process:
            return self._process.pid
        return None

    async def start(self) -> float:
        """Starts the server. Returns the seconds it took to be healthy. Raises ServerDiedError, EngineError, DiskError.

        Nothing is left running when it raises.
        """
        started_s = time.monotonic()
        try:
            await self._spawn()
            await self._wait_until_healthy(started_s)
        except BaseException:
            await self.stop()
            raise
        return time.monotonic() - started_s

    async def wait(self) -> ServerDiedError:
        """Returns the reason once the process has ended."""
        assert self._process is not None
        status = await self._process.wait()
        return self._died(status)

    def said(self) -> str:
        """Returns the errors in its log since its start."""
        return f"{self._diagnosis()} (log: {self.log})"

    async def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            # The guard then ends everything.
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), self._stop_timeout_s + _KILL_AFTER_S)
        except TimeoutError:
            _kill_tree(process.pid)
            await process.wait()
        marker = self._launch.environment.get(MARKER)
        # The guard itself was killed, and ended nothing.
        if process.returncode == -signal.SIGKILL and marker:
            await asyncio.to_thread(kill_marked, marker)

    async def _spawn(self) -> None:
        guard = (sys.executable, "-I", vllm_guard.__file__, str(self._stop_timeout_s))
        # A step has a guard of its own.
        command = [*(self._launch.step or guard), *self._launch.arguments]
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            output = self.log.open("ab")
        except OSError as error:
            raise disk_error(self.log, error) from error
        with output:
            self._log_start = output.tell()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=dict(self._launch.environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"Engine `{self._name}` cannot be started: {error}") from error

    async def _wait_until_healthy(self, started_s: float) -> None:
        process = self._process
        assert process is not None
        client = HttpClient(self.url, api_key=self._launch.api_key, tries=1, direct=bool(self._launch.step))
        await client.open()
        told_s = started_s
        try:
            while not await _is_healthy(client):
                if process.returncode is not None:
                    raise self._died(process.returncode)
                now_s = time.monotonic()
                if now_s - started_s > self._start_timeout_s:
                    raise EngineError(
                        f"Engine `{self._name}` was not ready after {self._start_timeout_s:.0f} s: "
                        f"{self._diagnosis()} (log: {self.log})"
                    )
                if now_s - told_s >= _TELL_EVERY_S:
                    told_s = now_s
                    self._say(f"{self._name} starts, {now_s - started_s:.0f} s: {last_line(self._tail())}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _LOOK_S)
        finally:
            await client.close()

    def _died(self, status: int) -> ServerDiedError:
        if status - 128 in (signal.SIGKILL, signal.SIGTERM):
            name = signal.Signals(status - 128).name
            how = f"was ended by {name} from outside: by hand, or by the machine for want of memory"
            return ServerDiedError(f"Engine `{self._name}` {how} (log: {self.log})", Cause.unknown)
        diagnosis = self._diagnosis()
        if status - 128 in _SIGNALS:
            how = f"signal {signal.Signals(status - 128).name}"
        else:
            how = f"status {status}"
        return ServerDiedError(
            f"Engine `{self._name}` ended with {how}: {diagnosis} (log: {self.log})", diagnosis.cause
        )

    def _diagnosis(self) -> Diagnosis:
        return diagnose_start(self._tail())

    def _tail(self) -> str:
        return read_tail(self.log, self._log_start)


_SIGNALS = frozenset(int(number) for number in signal.Signals)


async def _is_healthy(client: HttpClient) -> bool:
    try:
        return (await client.get("/health", timeout_s=5.0)).ok
    except EngineError:
        return False


def _kill_tree(pid: int) -> None:
    pids: Sequence[int] = [*vllm_guard.list_descendants(pid), pid]
    for pid_below in pids:
        with contextlib.suppress(OSError):
            os.kill(pid_below, signal.SIGKILL)
