"""This program is one of the gateway's processes: it does HTTP, dialects, conversations and tokenizing for the sessions
that it was given.

    python -m swe_rl.gateway.processes.worker FD [FD]   (started by the driver: its end of the link, and the listening
                                                         socket of an address that it shares)

Invariants:
- It has no engine, no router and no file: the driver samples and records for it. If the prompt of a call is here, this
  process asks the engine's server when the driver says so, and passes the answer on as it came.
- A turn is sent to be recorded before its client is answered. All of a session's turns are sent before it is closed.
- It ends when the link does, at once: also when the driver was killed.
- A session's secret, like everything else it is told, came over the link: nothing is on its command line.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

from aiohttp import web

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.token_ids import TokenIds
from swe_rl.errors import UserError
from swe_rl.gateway.chains.sampled_reply import SampledReply
from swe_rl.gateway.completion import Completer
from swe_rl.gateway.errors import ApiError, GatewayError, Handler
from swe_rl.gateway.http import HttpDoor
from swe_rl.gateway.live import LiveSession, LiveSessions
from swe_rl.gateway.processes.address import SharedAddress
from swe_rl.gateway.processes.link import Head, Link, unpacked_completion
from swe_rl.gateway.routes import Routes
from swe_rl.gateway.session import SessionSettings, TurnPlan
from swe_rl.gateway.trace import Recorded, TraceStoreError
from swe_rl.gateway.waits import Waits
from swe_rl.model.make_renderer import parser_of, renderer_of

_log = logging.getLogger(__name__)
# Answers are counted here, and the driver hears of them so often: one message a call would cost more than the count.
_COUNTED_S = 1.0


class _FarWaits(Waits):
    """Tells the driver what it cannot see of a session's waits. The driver counts them."""

    def __init__(self, link: Link, session_id: str) -> None:
        super().__init__()
        self._link = link
        self._session_id = session_id
        self._backs_off = False

    def refused(self) -> None:
        self._backs_off = True
        self._link.send({"kind": "refused", "session": self._session_id})

    def asked(self) -> None:
        if self._backs_off:
            self._backs_off = False
            self._link.send({"kind": "asked", "session": self._session_id})


class _FarStore:
    """Stands for the trace store and the router, which are the driver's. `address` exists if clients begin sessions."""

    def __init__(self, ask: Callable[[Head], Awaitable[Head]]) -> None:
        # These are the numbers of the session that the driver is opening now.
        self.opens: tuple[int, int] | None = None
        self.address: SharedAddress | None = None
        self._ask = ask

    def next_numbers(self, session_id: str) -> tuple[int, int]:
        if self.opens is None:
            assert self.address is not None, "only the driver opens sessions, or clients at a shared address"
            return self.address.numbers(session_id)
        return self.opens

    async def flush(self) -> None:
        """Lets the driver commit the traces of sessions that clients began. For its own sessions the driver flushes
        itself, once it heard of all turns. Raises TraceStoreError."""
        if self.address is not None:
            await self._ask({"kind": "flush"})

    def release(self, program_id: str) -> None:
        """Tells the driver that a client's session is gone. The driver's own sessions it knows."""
        if self.address is not None:
            self.address.release(program_id)


class _FarSampler:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls = count()
        self._waiting: dict[int, asyncio.Future[SampledReply | None]] = {}
        # Has the session and prompt of each call.
        self._prompts: dict[int, tuple[str, TokenIds]] = {}
        self._posts: dict[int, asyncio.Task[None]] = {}
        self._clients: dict[str, HttpClient] = {}

    async def sample(
        self, live: LiveSession, plan: TurnPlan, params: SamplingParams, *, logprobs: bool
    ) -> SampledReply:
        call = next(self._calls)
        base = plan.base_turn
        head = {
            "kind": "sample",
            "call": call,
            "session": live.session_id,
            "number": plan.number,
            "tokens": len(plan.prompt_ids),
            "params": asdict(params),
            "logprobs": logprobs,
        }
        self._prompts[call] = (live.session_id, plan.prompt_ids)
        try:
            sampled = None
            if base is not None:
                sampled = await self._asked(call, head | {"base": base}, plan.delta_ids.tobytes())
            # The driver has forgotten the ids that this prompt goes on from, so it gets the whole prompt.
            if sampled is None:
                sampled = await self._asked(call, head | {"base": None}, plan.prompt_ids.array().tobytes())
            assert sampled is not None, "a whole prompt is answered"
            return sampled
        except asyncio.CancelledError:
            self._link.send({"kind": "cancel", "session": live.session_id, "call": call})
            raise
        finally:
            self._waiting.pop(call, None)
            del self._prompts[call]

    async def record(
        self, live: LiveSession, plan: TurnPlan, turn: Recorded, sampled: SampledReply, started_s: float
    ) -> None:
        names = ("turn", "chain", "break_kind", "base_turn", "base_tokens", "role", "parent_turn", "sub_agent")
        turn_fields = {name: getattr(turn, name) for name in names}
        head = {"kind": "record", "session": live.session_id, "call": sampled.call, "turn": turn_fields}
        self._link.send(head | {"call_s": time.monotonic() - started_s})

    def answered(self, head: Head, body: bytes) -> None:
        """Takes the driver's `sampled`, `whole` or `refusal`."""
        waiting = self._waiting.get(head["call"])
        if waiting is None or waiting.done():
            return
        if head["kind"] == "sampled":
            completion = unpacked_completion(head["completion"], body)
            waiting.set_result(SampledReply(completion, head["engine"], head["held_s"], head["call"]))
        elif head["kind"] == "whole":
            waiting.set_result(None)
        else:
            waiting.set_exception(ApiError(**head["error"]))

    def post(self, head: Head) -> None:
        """Asks an engine's server for the driver."""
        call = head["call"]
        # Otherwise the client went away, which the driver is about to hear.
        if call in self._prompts:
            self._posts[call] = asyncio.get_running_loop().create_task(self._post(call, head))

    def unpost(self, head: Head) -> None:
        if head["call"] in self._posts:
            self._posts[head["call"]].cancel()

    async def _post(self, call: int, head: Head) -> None:
        session_id, prompt_ids = self._prompts[call]
        answer: Head = {"kind": "posted", "session": session_id, "call": call, "error": None}
        body = b""
        this = asyncio.current_task()
        try:
            client = await self._client(head["client"])
            reply = await client.post(head["path"], head["rest"] | {head["ids"]: prompt_ids})
            answer |= {"status": reply.status, "retry_after_s": reply.retry_after_s}
            body = reply.body
        except EngineError as error:
            answer |= {"error": type(error).__name__, "message": str(error)}
        except Exception as error:
            # The fault is ours. The driver waits for an answer, whatever it is.
            _log.exception("a server could not be asked")
            message = f"the gateway failed: {type(error).__name__}: {error}"
            answer |= {"error": EngineError.__name__, "message": message}
        finally:
            if self._posts.get(call) is this:
                del self._posts[call]
        self._link.send(answer, body)

    async def _client(self, settings: Head) -> HttpClient:
        key = repr(sorted(settings.items()))
        if key not in self._clients:
            self._clients[key] = HttpClient(**settings)
        await self._clients[key].open()
        return self._clients[key]

    async def _asked(self, call: int, head: Mapping[str, Any], ids: bytes) -> SampledReply | None:
        waiting: asyncio.Future[SampledReply | None] = asyncio.get_running_loop().create_future()
        self._waiting[call] = waiting
        self._link.send(head, ids)
        return await waiting


class Worker:
    def __init__(self, shared: socket.socket | None = None) -> None:
        self.link = Link(self._handle, lambda: os._exit(0))
        self._store = _FarStore(self._ask)
        self._sampler = _FarSampler(self.link)
        self._sessions: LiveSessions
        self._statuses: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._answers: dict[int, asyncio.Future[Head]] = {}
        self._questions = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared = shared

    def _handle(self, head: Head, body: bytes) -> None:
        kind = head["kind"]
        if kind in ("sampled", "whole", "refusal"):
            self._sampler.answered(head, body)
        elif kind == "post":
            self._sampler.post(head)
        elif kind == "unpost":
            self._sampler.unpost(head)
        elif kind == "open":
            self._store.opens = (head["turn"], head["chain"])
            self._sessions.open(head["session"], SessionSettings(**head["settings"]), secret=head["secret"])
            self._store.opens = None
        elif kind == "close":
            self._spawn(self._close(head["session"]))
        elif kind == "answer":
            self._answers.pop(head["question"]).set_result(head)
        elif kind == "setup":
            self._spawn(self._start(head, body.decode()))

    async def _start(self, setup: Head, tokenizer: str) -> None:
        config = GatewayConfig(**setup["gateway"])
        renderer = renderer_of(setup["renderer"], tokenizer)
        self._sessions = LiveSessions(
            self._store,
            renderer,
            self._store,
            config,
            clients_begin=self._shared is not None,
            waits=lambda session_id: _FarWaits(self.link, session_id),
        )
        name = setup["model_name"]
        limit = setup["max_model_len"]
        parse = parser_of(setup["tool_parser"], renderer)
        completer = Completer(self._sampler, renderer, model_name=name, max_model_len=limit, parse=parse)
        routes = Routes(
            self._sessions,
            completer,
            answered=self._count,
            noted=self._notes.update,
            model_name=name,
            max_model_len=limit,
            model_path=setup["model_path"],
            vocab_size=setup["vocab_size"],
            heartbeat_s=setup["heartbeat_s"],
            arrival_s=setup["arrival_s"],
        )
        before = [self._known_sessions()]
        if self._shared is not None:
            self._store.address = address = SharedAddress(
                lambda session_id, begins: self._ask({"kind": "whose", "session": session_id, "begins": begins}),
                self.link.send,
                self._sessions.__contains__,
                driver_port=setup["driver_port"],
                arrival_s=setup["arrival_s"],
            )
            before.append(address.middleware())
        door = HttpDoor(config, routes, setup["token"], setup["arrival_s"], *before)
        try:
            self.link.send({"kind": "ready", "port": await door.start(self._shared)})
        except UserError as error:
            self.link.send({"kind": "failed", "message": str(error)})
            return
        while True:
            await asyncio.sleep(_COUNTED_S)
            self._sessions.let_go()
            if self._statuses or self._notes:
                self.link.send({"kind": "counts", "statuses": dict(self._statuses), "notes": dict(self._notes)})
                self._statuses.clear()
                self._notes.clear()

    async def _close(self, session_id: str) -> None:
        try:
            summary = await self._sessions.close(session_id)
        except GatewayError:
            return
        breaks = {kind.value: number for kind, number in summary.breaks.items()}
        self.link.send({"kind": "closed", "session": session_id, "summary": asdict(summary) | {"breaks": breaks}})

    def _known_sessions(self) -> Any:
        @web.middleware
        async def settle(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Lets a call that was faster than its session wait: a session is opened over the link, but asked by
            HTTP."""
            session_id = request.match_info.get("session_id")
            if session_id is not None and not self._sessions.is_opened(session_id):
                await self._ask({"kind": "settle"})
            return await handler(request)

        return settle

    async def _ask(self, head: Head) -> Head:
        """Returns the driver's answer, which comes after all that the driver said before. Raises TraceStoreError."""
        question = next(self._questions)
        self._answers[question] = asyncio.get_running_loop().create_future()
        self.link.send(head | {"question": question})
        answer = await asyncio.shield(self._answers[question])
        if "problem" in answer:
            raise TraceStoreError(answer["problem"])
        return answer

    def _count(self, status: str) -> None:
        self._statuses[status] += 1

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _run_worker(descriptor: int, shared: int | None = None) -> None:
    worker = Worker(None if shared is None else socket.socket(fileno=shared))
    end = socket.socket(fileno=descriptor)
    await asyncio.get_running_loop().create_unix_connection(lambda: worker.link, sock=end)
    await asyncio.Event().wait()


if __name__ == "__main__":
    # Ctrl-C is the driver's. It closes the link, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_run_worker(*map(int, sys.argv[1:])))
