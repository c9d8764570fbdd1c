"""The gateway is the HTTP server between agents and engines. Agents send requests in one of its dialects, and engines
get token ids.

Invariants:
- Every finished completion is in the store's hands before its client is answered; `close_session` returns once the
  session's traces are committed.
- Whoever has a session's URL may use that session. The URL of a session that the run opened has a random secret.
- Beyond loopback the gateway only listens with a bearer token; `callers` says who is answered.
- With `gateway.processes` above 1, the sessions that `open_session` makes live in processes of their own, under the
  same rules. The driver's own port then only shows the state of router and engines. Where clients begin sessions, all
  processes are at one address, and the driver's port is behind it.
- `close` ends every call in flight and frees the port, also after a failed start. It does not close engines or store:
  they are the caller's.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.engine import Engine, LossTeller
from swe_rl.gateway.chains.recall import Recall
from swe_rl.gateway.completion import AnswersCalls, Completer
from swe_rl.gateway.errors import GatewayConfigError, GatewayError
from swe_rl.gateway.forwarding.completer import ForwardingCompleter
from swe_rl.gateway.http import HttpDoor, root_url
from swe_rl.gateway.live import LiveSessions, SessionSummary
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.processes.workers import Setup, Workers
from swe_rl.gateway.routes import Routes, StateRoutes
from swe_rl.gateway.sampling import Sampling
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.host.addresses import is_loopback
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.make_renderer import parser_of
from swe_rl.router.core import Router

# Idle sessions are looked for at least so often.
_LET_GO_S = 60.0


class Gateway:
    """Serves a model's sessions over HTTP from start to close.

    `tool_parser`, `model_path` and `vocab_size` belong to the model. Within `arrival_s` seconds a request's head must
    arrive, and then within as many its body; an idle connection is kept as long. With `clients_begin`, a request that
    names a new session, or none, begins one. Without it, only sessions that `open_session` made are answered.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        router: Router,
        renderer: ChatRenderer,
        store: TraceStore,
        *,
        model_name: str,
        config: GatewayConfig,
        max_model_len: int,
        tool_parser: str = "hermes",
        model_path: str | None = None,
        vocab_size: int = 2**31,
        token: str | None = None,
        clients_begin: bool = False,
        heartbeat_s: float = 10.0,
        arrival_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises GatewayConfigError for a public address without a token, ToolParserError for an unknown
        `tool_parser`."""
        if token is None and not is_loopback(config.host):
            raise GatewayConfigError(
                f"gateway.host={config.host} is reachable from other machines and there is no token; give the gateway "
                "a bearer token, or bind 127.0.0.1"
            )
        self._config = config
        self._letting_go: asyncio.Task[None] | None = None
        self._root_url: str | None = None
        self._placement = Placement(router, engines, clock)
        self._sessions = LiveSessions(
            self._placement, renderer, store, config, clients_begin=clients_begin, clock=clock
        )
        metrics = GatewayMetrics(engines, store, self._sessions, self._placement)
        sampling = Sampling(self._placement, store, metrics, max_model_len=max_model_len, clock=clock)
        parse = parser_of(tool_parser, renderer)
        shared: dict[str, Any] = {"model_name": model_name, "max_model_len": max_model_len, "clock": clock}
        completer: AnswersCalls = Completer(sampling, renderer, parse=parse, **shared)
        endpoint = next((engine for engine in engines if isinstance(engine, EndpointEngine)), None)
        if endpoint is not None:
            completer = ForwardingCompleter(endpoint, metrics, **shared)
        fields: dict[str, Any] = {
            "model_name": model_name,
            "max_model_len": max_model_len,
            "model_path": model_path,
            "vocab_size": vocab_size,
            "heartbeat_s": heartbeat_s,
            "arrival_s": arrival_s,
        }
        routes = Routes(self._sessions, completer, metrics.answer, metrics.note, **fields)
        behind = config.processes > 1 and clients_begin
        where = replace(config, host="127.0.0.1", port=0) if behind else config
        self._door = HttpDoor(where, routes, token, arrival_s, state=StateRoutes(self._placement, metrics))
        self._workers: Workers | None = None
        if config.processes > 1:
            setup = Setup(config, renderer, tool_parser, token, fields, clients_begin)
            self._workers = Workers(setup, sampling, self._placement, store, metrics, clock)
            metrics.elsewhere = self._workers

    async def start(self) -> str:
        """Binds the port and serves. Returns the base URL for clients without a session. Raises GatewayConfigError."""
        port = await self._door.start()
        if self._workers is not None:
            try:
                await self._workers.start(port)
            except BaseException:
                await self.close()
                raise
            port = self._workers.shared_port or port
        self._placement.start()
        self._letting_go = asyncio.get_running_loop().create_task(self._let_go())
        self._root_url = root_url(self._config.host, port)
        return f"{self._root_url}/v1"

    async def close(self) -> None:
        """Ends all calls and frees the port. It may be called at any time, and again."""
        if self._workers is not None:
            await self._workers.close()
        await asyncio.gather(*(live.cancel_calls() for live in self._sessions.all()))
        await self._placement.close()
        if self._letting_go is not None:
            self._letting_go.cancel()
        await self._door.close()

    def open_session(self, session_id: str, settings: SessionSettings) -> None:
        """Opens a session whose calls follow `settings`, whatever its client asks for. Raises GatewayError for an id
        that is open, TraceStoreError."""
        if self._workers is not None and session_id in self._workers:
            raise GatewayError(f"session {session_id} is already open; close it first, or take another id")
        if self._workers is None or not self._workers.open(session_id, settings):
            self._sessions.open(session_id, settings)

    def recall_first(self, session_id: str, recall: Recall) -> None:
        """Lets an opened session give recorded replies before it samples any. This takes `gateway.processes=1`."""
        self._sessions.recall_first(session_id, recall)

    def session_url(self, session_id: str) -> str:
        """Returns the base URL for an OpenAI client of this session. The URL of an opened session is secret: it is for
        the session's agent, and for no file, log or message. Raises GatewayError before `start`."""
        if self._root_url is None:
            raise GatewayError("the gateway has no address before it is started")
        if self._workers is not None and session_id in self._workers:
            return self._workers.url(session_id)
        secret = self._sessions.secret(session_id)
        return f"{self._root_url}/sessions/{quote(session_id, safe='')}{f'/{secret}' if secret else ''}/v1"

    async def close_session(self, session_id: str) -> SessionSummary:
        """Ends the session's calls and returns once its traces are committed. Raises GatewayError, TraceStoreError."""
        if self._workers is not None and session_id in self._workers:
            return await self._workers.close_session(session_id)
        return await self._sessions.close(session_id)

    def ended(self, session_id: str) -> "asyncio.Future[SessionSummary] | None":
        """Returns a future for a session in a process of its own (`gateway.processes`), None for any other session. If
        that process ends before the session is closed, the future gets a summary whose `lost` says why."""
        if self._workers is not None and session_id in self._workers:
            return self._workers.ended(session_id)
        return None

    def waited_s(self, session_id: str) -> float:
        """Returns the seconds so far in which calls of this session waited for the router, an engine's queue or
        restart, or to be let in. This time does not count towards the agent's time limit."""
        if self._workers is not None and session_id in self._workers:
            return self._workers.waited_s(session_id)
        return self._sessions.waited_s(session_id)

    @property
    def num_sessions(self) -> int:
        """Counts the sessions that are open: those of `open_session`, and those that clients began and did not
        close."""
        return len(self._sessions) + (len(self._workers) if self._workers is not None else 0)

    @property
    def process_ids(self) -> list[int]:
        """Lists the ids of the running processes of `gateway.processes`."""
        return self._workers.pids if self._workers is not None else []

    @property
    def placement(self) -> Placement:
        """Has what waits for the router, and what programs found in the engines' caches."""
        return self._placement

    def syncing(self) -> AbstractContextManager[None]:
        """Encloses a weight update: the router places nothing meanwhile, and takes all prefix caches for empty after
        it."""
        return self._placement.syncing()

    def tail(self, active: bool) -> None:
        """Tells the router whether the step has no trajectory left that has not begun. The rollout calls it."""
        self._placement.tail(active)

    def group_left(self, group_id: str, trajectories: int) -> None:
        """Tells the router how many trajectories of a group have not ended; at 0 the group is trained. The rollout
        calls it."""
        self._placement.group_left(group_id, trajectories)

    def tell_of_engines(self, tellers: Mapping[str, LossTeller]) -> None:
        """Registers by engine name who is told when the engine fails the requests that it takes, and when it answers
        again."""
        self._placement.health.tellers = tellers

    def router_state(self) -> dict[str, object]:
        return self._placement.snapshot()

    async def _let_go(self) -> None:
        while True:
            await asyncio.sleep(min(_LET_GO_S, self._config.session_idle_s / 4))
            self._sessions.let_go()
