"""This module is the driver's side of the gateway's processes: it starts them, gives them sessions, and replaces one
that dies.

Invariants:
- A session lives in one process until it is closed: the one that had the fewest. If no process is up, it stays in the
  driver.
- A process that dies takes its sessions along, and nothing else: each of them ends with the reason. Another process is
  started in its place.
- A process ends with its link: on `close`, and when the driver is killed.
- Where clients begin sessions, all processes accept from one socket, and the driver says whose a session is: the
  process that asked first has it, until the session ends there or the process does.
"""

import asyncio
import contextlib
import logging
import math
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from swe_rl.config.schema import GatewayConfig
from swe_rl.gateway.errors import GatewayConfigError
from swe_rl.gateway.http import open_listener, root_url
from swe_rl.gateway.live import SessionSummary, new_secret
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.processes.far import FarSession
from swe_rl.gateway.processes.link import Head, Link
from swe_rl.gateway.sampling import Sampling
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.model.chat import ChatRenderer

# A process makes its imports and reads the tokenizer. On a busy machine this may take so long.
_START_S = 60.0
# A session's end may take so long in its process. Then the process counts as lost.
_CLOSE_S = 60.0
# A process ends with its link. After so long it is killed.
_END_S = 5.0
# A process that dies at once is not started more often than this.
_PAUSE_S = 1.0
# After so many failed starts in a row the process stays away, and the others take its sessions.
_FAILURES = 3
# Where processes share an address, each also listens at one of its own, for the other processes only.
_OWN_HOST = "127.0.0.1"
# The driver remembers so many closed sessions, as only their process can say that they are closed.
_REMEMBERED = 65536
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """Has what each process is told. `fields` are the keyword arguments of `Routes`; `clients_begin` is the
    gateway's."""

    config: GatewayConfig
    renderer: ChatRenderer
    tool_parser: str
    token: str | None
    fields: Mapping[str, Any]
    clients_begin: bool

    def message(self, index: int, driver_port: int) -> tuple[Head, bytes]:
        config = self.config
        settings, tokenizer = self.renderer.described()
        host = config.host
        port = 0
        if config.port:
            port = config.port + 1 + index
        if self.clients_begin:
            host = _OWN_HOST
            port = 0
        gateway = {
            "host": host,
            "port": port,
            "max_body_mb": config.max_body_mb,
            "max_calls": math.ceil(config.max_calls / config.processes),
            "max_idle_sessions": math.ceil(config.max_idle_sessions / config.processes),
            "session_idle_s": config.session_idle_s,
        }
        head = {"kind": "setup", "gateway": gateway, "renderer": settings, "tool_parser": self.tool_parser}
        return head | {"token": self.token, "driver_port": driver_port, **self.fields}, tokenizer.encode()


class _Process:
    def __init__(self, index: int, heard: "Callable[[_Process, Head, bytes], None]") -> None:
        self.index = index
        self.sessions: dict[str, FarSession] = {}
        self.port = 0
        self.gone = asyncio.Event()
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.link = Link(lambda head, body: heard(self, head, body), self.gone.set)
        self.child: asyncio.subprocess.Process | None = None

    @property
    def up(self) -> bool:
        return self.port > 0 and not self.gone.is_set()

    async def start(self, setup: tuple[Head, bytes], shared: socket.socket | None) -> None:
        """Starts the process and waits until it listens. Raises GatewayConfigError."""
        here, there = socket.socketpair()
        here.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link, sock=here)
        with there:
            passed = [end.fileno() for end in (there, shared) if end is not None]
            command = (sys.executable, "-m", "swe_rl.gateway.processes.worker", *map(str, passed))
            self.child = await asyncio.create_subprocess_exec(
                *command, pass_fds=passed, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        self.link.send(*setup)
        gone = asyncio.ensure_future(self.gone.wait())
        either: set[asyncio.Future[Any]] = {self.ready, gone}
        try:
            await asyncio.wait(either, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not self.ready.done():
                self.ready.cancel()
        if self.ready.cancelled():
            await self.close()
            raise GatewayConfigError(f"process {self.index} of gateway.processes did not start; see its words above")
        try:
            self.port = self.ready.result()
        except GatewayConfigError:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the link. The process has ended when this returns."""
        self.link.close()
        if self.child is None:
            return
        try:
            await asyncio.wait_for(self.child.wait(), _END_S)
        except TimeoutError:
            self.kill()
            await self.child.wait()

    def kill(self) -> None:
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()


class Workers:
    def __init__(
        self,
        setup: Setup,
        sampling: Sampling,
        placement: Placement,
        store: TraceStore,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setup = setup
        self._sampling = sampling
        self._placement = placement
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._sessions: dict[str, tuple[_Process, FarSession]] = {}
        self._processes: dict[int, _Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._shared: socket.socket | None = None
        self._driver_port = 0
        # Has the sessions of clients that are about to end.
        self._going: dict[str, asyncio.Task[None]] = {}
        # Has the processes of sessions that ended. Only that process knows that a session is closed.
        self._was: OrderedDict[str, _Process] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, driver_port: int) -> None:
        """Starts all processes. `driver_port` is where the driver shows the state of router and engines. Raises
        GatewayConfigError."""
        self._driver_port = driver_port
        if self._setup.clients_begin:
            self._shared = open_listener(self._setup.config)
        indices = range(self._setup.config.processes)
        await asyncio.gather(*(self._start(index) for index in indices))
        self._keepers = [asyncio.get_running_loop().create_task(self._keep(index)) for index in indices]

    async def close(self) -> None:
        """Ends all sessions and processes. It may be called at any time, and again."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for _, far in list(self._sessions.values()):
            far.lose("the gateway ended")
            await far.settle()
        await asyncio.gather(*(process.close() for process in self._processes.values()))
        if self._shared is not None:
            self._shared.close()

    @property
    def shared_port(self) -> int | None:
        """Returns the port that all processes share, or None."""
        if self._shared is None:
            return None
        return int(self._shared.getsockname()[1])

    def open(self, session_id: str, settings: SessionSettings) -> bool:
        """Opens a session in a process. Returns False if no process is up. Raises TraceStoreError."""
        up = [process for process in self._processes.values() if process.up]
        if not up:
            return False
        process = min(up, key=lambda process: len(process.sessions))
        turn, chain = self._store.next_numbers(session_id)
        far = FarSession(session_id, new_secret(), settings.group_id, process.link, self._sampling, self._clock)
        self._sessions[session_id] = (process, far)
        process.sessions[session_id] = far
        head = {"kind": "open", "session": session_id, "secret": far.secret, "settings": asdict(settings)}
        process.link.send(head | {"turn": turn, "chain": chain})
        return True

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_calls(self) -> int:
        return sum(far.num_calls for _, far in self._sessions.values())

    @property
    def pids(self) -> list[int]:
        """Lists the ids of the processes that are up, in order."""
        return [process.child.pid for process in self._processes.values() if process.up and process.child is not None]

    def url(self, session_id: str) -> str:
        process, far = self._sessions[session_id]
        root = root_url(self._setup.config.host, self.shared_port or process.port)
        return f"{root}/sessions/{quote(session_id, safe='')}/{far.secret}/v1"

    def waited_s(self, session_id: str) -> float:
        return self._sessions[session_id][1].waits.total_s()

    def ended(self, session_id: str) -> "asyncio.Future[SessionSummary]":
        return self._sessions[session_id][1].ended

    async def close_session(self, session_id: str) -> SessionSummary:
        """Closes a session as `LiveSessions.close` does."""
        process, far = self._sessions[session_id]
        process.link.send({"kind": "close", "session": session_id})
        try:
            await asyncio.wait({far.ended}, timeout=_CLOSE_S)
            if not far.ended.done():
                process.kill()
                far.lose(f"process {process.index} of gateway.processes did not answer for {_CLOSE_S:g} s")
            await far.settle()
        finally:
            self._sessions.pop(session_id, None)
            process.sessions.pop(session_id, None)
            self._placement.release(session_id)
        await self._store.flush()
        return far.summary()

    async def _start(self, index: int) -> None:
        process = self._processes[index] = _Process(index, self._heard)
        await process.start(self._setup.message(index, self._driver_port), self._shared)

    async def _keep(self, index: int) -> None:
        """Starts another process whenever this one is lost."""
        failures = 0
        while failures < _FAILURES:
            process = self._processes[index]
            await process.gone.wait()
            if not process.port:
                failures = failures + 1
            else:
                failures = 0
            await self._lost(process)
            await asyncio.sleep(_PAUSE_S)
            try:
                await self._start(index)
            except (GatewayConfigError, OSError) as error:
                _log.warning("process %d of gateway.processes cannot be started again: %s", index, error)
                self._processes[index].gone.set()
        _log.warning("process %d of gateway.processes stays away; the others take its sessions", index)

    async def _lost(self, process: _Process) -> None:
        await process.close()
        status = None
        if process.child is not None:
            status = process.child.returncode
        reason = f"process {process.index} of gateway.processes, which had its conversation, ended with status {status}"
        if process.port:
            _log.warning("%s; %d sessions are lost, another one is started", reason, len(process.sessions))
        for name, far in process.sessions.items():
            far.lose(reason)
            if not far.secret:
                self._let_go(process, name)

    async def _whose(self, process: _Process, name: str, begins: bool) -> Head:
        """Answers which process has the session. `port` is that process's port, or None for the process that asks;
        `numbers` are set if the session begins there."""
        home, far = self._sessions.get(name, (None, None))
        if home is not None and far is not None and not home.up and not far.secret:
            self._let_go(home, name)
        if name in self._going:
            await asyncio.wait({self._going[name]})
        home, _ = self._sessions.get(name, (self._was.get(name), None))
        if home is not None and home.up and home is not process:
            return {"port": home.port, "numbers": None}
        if name in self._sessions or not begins:
            return {"port": None, "numbers": None}
        numbers = self._store.next_numbers(name)
        self._begin(process, name)
        return {"port": None, "numbers": numbers}

    def _begin(self, process: _Process, name: str) -> None:
        """Notes that a client's session is in this process from now on."""
        far = FarSession(name, "", None, process.link, self._sampling, self._clock)
        self._sessions[name] = (process, far)
        process.sessions[name] = far

    def _let_go(self, process: _Process, name: str) -> None:
        """Ends a client's session there. Its turns are with the store before it may begin anew."""
        if name not in self._going and self._sessions.get(name, (None, None))[0] is process:
            self._going[name] = asyncio.get_running_loop().create_task(self._ended(process, name))

    async def _ended(self, process: _Process, name: str) -> None:
        try:
            await self._sessions[name][1].settle()
        finally:
            self._sessions.pop(name, None)
            del self._going[name]
            process.sessions.pop(name, None)
            self._placement.release(name)
            self._was[name] = process
            if len(self._was) > _REMEMBERED:
                self._was.popitem(last=False)

    async def _flush(self) -> Head:
        if self._going:
            await asyncio.wait(set(self._going.values()))
        await self._store.flush()
        return {}

    def _answer(self, process: _Process, head: Head, answering: Coroutine[Any, Any, Head]) -> None:
        async def answer() -> None:
            try:
                said = await answering
            except TraceStoreError as error:
                said = {"problem": str(error)}
            except Exception as error:
                # The fault is ours. A caller waits for an answer, whatever it is.
                _log.exception("a question of process %d of gateway.processes went wrong", process.index)
                said = {"problem": f"the gateway failed: {type(error).__name__}: {error}"}
            process.link.send({"kind": "answer", "question": head["question"], **said})

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _heard(self, process: _Process, head: Head, body: bytes) -> None:
        kind = head["kind"]
        far = process.sessions.get(head.get("session", ""))
        if kind == "ready" and not process.ready.done():
            process.ready.set_result(head["port"])
        elif kind == "failed" and not process.ready.done():
            process.ready.set_exception(GatewayConfigError(head["message"]))
        elif kind == "settle":
            process.link.send({"kind": "answer", "question": head["question"]})
        elif kind == "whose":
            self._answer(process, head, self._whose(process, head["session"], head["begins"]))
        elif kind == "flush":
            self._answer(process, head, self._flush())
        elif kind == "begun":
            self._begin(process, head["session"])
        elif kind == "released":
            self._let_go(process, head["session"])
        elif kind == "counts":
            for status, number in head["statuses"].items():
                self._metrics.answer(status, number)
            for kind, calls in head["notes"].items():
                self._metrics.note([kind], calls)
        elif far is None or far.ended.done():
            return
        elif kind == "sample":
            far.sample(head, body)
        elif kind == "posted":
            far.posted(head, body)
        elif kind == "cancel":
            far.cancel(head["call"])
        elif kind == "record":
            far.record(head)
        elif kind == "closed":
            far.closed(head["summary"])
        elif kind == "refused":
            far.waits.refused()
        elif kind == "asked":
            far.waits.asked()
