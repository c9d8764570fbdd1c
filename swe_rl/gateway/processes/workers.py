"""The gateway's processes, seen from the driver: started, given sessions, replaced where one dies.

Invariants:
- A session lives in one process until it is closed: the one that had the fewest. What none can take stays in the
  driver.
- A process that dies takes its sessions along, and nothing else: each of them ends with the reason. Another process is
  started in its place.
- A process ends with its link: on `close`, and when the driver is killed.
- Where clients begin sessions all processes accept from one socket, and the driver says whose a session is: of the
  process that asked first for it, until it ends there or the process does.
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
from swe_rl.gateway.http import listening, root_url
from swe_rl.gateway.live import SessionSummary, new_secret
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.processes.far import FarSession
from swe_rl.gateway.processes.link import Head, Link
from swe_rl.gateway.sampling import Sampling
from swe_rl.gateway.session import Beginning, SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.model.chat import ChatRenderer

_START_S = 60.0  # of a process, on a busy machine
_CLOSE_S = 60.0  # that a session's end may take there before the process counts as lost
_END_S = 5.0
_PAUSE_S = 1.0  # before another one is started
_FAILURES = 3  # in a row; then there is one process less
_OWN_HOST = "127.0.0.1"  # of each process, where they share an address
_REMEMBERED = 65536
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """What each process is told; `fields` are of `Routes`, by name. `clients_begin`: as the gateway's."""

    config: GatewayConfig
    renderer: ChatRenderer
    tool_parser: str
    token: str | None
    fields: Mapping[str, Any]
    clients_begin: bool

    def message(self, index: int, driver_port: int) -> tuple[Head, bytes]:
        config = self.config
        settings, tokenizer = self.renderer.described()
        gateway = {
            "host": _OWN_HOST if self.clients_begin else config.host,
            "port": config.port + 1 + index if config.port and not self.clients_begin else 0,
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
        """Raises GatewayConfigError."""
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
        """It has ended when this returns."""
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
        self._sampling, self._placement, self._store, self._metrics = sampling, placement, store, metrics
        self._clock = clock
        self._sessions: dict[str, tuple[_Process, FarSession]] = {}
        self._processes: dict[int, _Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._shared: socket.socket | None = None
        self._driver_port = 0
        self._going: dict[str, asyncio.Task[None]] = {}  # sessions of clients that end
        self._was: OrderedDict[str, _Process] = OrderedDict()  # where they were: it knows which are closed
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, driver_port: int) -> None:
        """`driver_port`: of the state of router and engines. Raises GatewayConfigError."""
        self._driver_port = driver_port
        if self._setup.clients_begin:
            self._shared = listening(self._setup.config)
        indices = range(self._setup.config.processes)
        await asyncio.gather(*(self._start(index) for index in indices))
        self._keepers = [asyncio.get_running_loop().create_task(self._keep(index)) for index in indices]

    async def close(self) -> None:
        """May be called at any time and again."""
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
        """Of the address that all share."""
        return None if self._shared is None else int(self._shared.getsockname()[1])

    def open(self, session_id: str, settings: SessionSettings) -> bool:
        """False where no process is up. Raises TraceStoreError."""
        up = [process for process in self._processes.values() if process.up]
        if not up:
            return False
        process = min(up, key=lambda process: len(process.sessions))
        turn, chain = self._store.next_numbers(session_id)
        far = FarSession(session_id, new_secret(), settings.group_id, process.link, self._sampling, self._clock)
        self._sessions[session_id], process.sessions[session_id] = (process, far), far
        head = {"kind": "open", "session": session_id, "secret": far.secret, "settings": asdict(settings)}
        process.link.send(head | {"turn": turn, "chain": chain})
        return True

    async def replay(self, session_id: str, beginning: Beginning) -> int:
        """As `Gateway.replay`: its process has done it when this returns."""
        process, far = self._sessions[session_id]
        process.link.send({"kind": "replay", "session": session_id, "beginning": asdict(beginning)})
        return await far.replayed()

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_calls(self) -> int:
        return sum(far.num_calls for _, far in self._sessions.values())

    @property
    def pids(self) -> list[int]:
        """Of those that are up, in order."""
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
        """As `LiveSessions.close`."""
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
        """Starts another one whenever it is lost."""
        failures = 0
        while failures < _FAILURES:
            process = self._processes[index]
            await process.gone.wait()
            failures = failures + 1 if not process.port else 0
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
        status = process.child.returncode if process.child is not None else None
        reason = f"process {process.index} of gateway.processes, which had its conversation, ended with status {status}"
        if process.port:
            _log.warning("%s; %d sessions are lost, another one is started", reason, len(process.sessions))
        for name, far in process.sessions.items():
            far.lose(reason)
            if not far.secret:
                self._let_go(process, name)

    async def _whose(self, process: _Process, name: str, begins: bool) -> Head:
        """`port`: of the process that has the session, or None for the one that asks; `numbers`: it begins there."""
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
        """A client's session is there from now on."""
        far = FarSession(name, "", None, process.link, self._sampling, self._clock)
        self._sessions[name], process.sessions[name] = (process, far), far

    def _let_go(self, process: _Process, name: str) -> None:
        """A client's session has ended there; its turns are with the store before it may begin anew."""
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
            except Exception as error:  # of ours: a caller waits for an answer, whatever it is
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
                self._metrics.requests.labels(status).inc(number)
        elif far is None or far.ended.done():
            return
        elif kind == "replayed":
            far.has_replayed(head)
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
