"""The gateway's HTTP routes.

Invariants:
- A call belongs to the session named in its URL, else by `program_id` in its body, else by X-Program-Id; a call
  without any is a session of its own. One that was opened for a trajectory is reached by its URL only, which has its
  secret; to everything else it is not there.
- A client closes the session that it began; one that was opened for a trajectory only its opener closes.
- A client that disconnects cancels its call.
- Of a stream, until the first heartbeat an error still is an HTTP error; after it, the dialect's event.
- Each dialect is at its path, at every address of a session; what it is refused is written in its form.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import orjson
from aiohttp import web

from swe_rl.gateway.callers import body_of
from swe_rl.gateway.completion import Completer
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.dialects.messages import Messages
from swe_rl.gateway.dialects.protocol import Dialect
from swe_rl.gateway.dialects.responses import Responses, session_of
from swe_rl.gateway.errors import ApiError, GatewayError, no_reply, no_session, refusal
from swe_rl.gateway.live import LiveSession, LiveSessions, body_name
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.reply import ChatAnswer
from swe_rl.gateway.request import Arrived, ChatRequest, program_named
from swe_rl.gateway.token_request import SERVER, TokenRequest, parse_token_request, token_answer
from swe_rl.version import __version__

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Messages(), Responses())
ERROR_FORMS = {path: dialect.error for dialect in DIALECTS for path in (dialect.path, dialect.count_path) if path}
_SESSION = "/sessions/{session_id:[^/]+}"  # an instance's id may have braces
_OPENED = f"{_SESSION}/{{secret}}/v1"  # of a session that was opened for a trajectory
_REPLY = Responses.path + r"/{reply_id:(?!(?:compact|input_tokens)$)[^/]+}"  # those are OpenAI's verbs, not here
_CLIENT_GONE = "499"
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
T = TypeVar("T")
Wanted = TypeVar("Wanted", ChatRequest, TokenRequest)


class StateRoutes:
    """Beside `Routes` where router and engines are."""

    def __init__(self, placement: Placement, metrics: GatewayMetrics) -> None:
        self._placement = placement
        self._metrics = metrics

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/router/state", self.router_state)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def router_state(self, request: web.Request) -> web.Response:
        """Ledgers, programs and the latest decisions with their reasons."""
        return _json(self._placement.snapshot())


class Routes:
    """`answered` hears the HTTP status of each call."""

    error_forms = ERROR_FORMS

    def __init__(
        self,
        sessions: LiveSessions,
        completer: Completer,
        answered: Callable[[str], None],
        *,
        model_name: str,
        max_model_len: int,
        model_path: str | None,
        vocab_size: int,
        heartbeat_s: float,
        arrival_s: float,
    ) -> None:
        self._sessions = sessions
        self._completer = completer
        self._answered = answered
        self._model = {"id": model_name, "object": "model", "created": 0, "owned_by": "swe_rl"}
        self._model["max_model_len"] = max_model_len
        self._model["root"] = model_path or model_name
        self._model_name = model_name
        self._names = (model_name, model_path or model_name)
        self._vocab_size = vocab_size
        self._heartbeat_s = heartbeat_s
        self._arrival_s = arrival_s

    def add_to(self, app: web.Application) -> None:
        for prefix in ("/v1", f"{_SESSION}/v1", _OPENED):
            for dialect in DIALECTS:
                app.router.add_post(f"{prefix}{dialect.path}", partial(self.reply, dialect))
                if dialect.count_path:
                    app.router.add_post(f"{prefix}{dialect.count_path}", partial(self.count, dialect))
            app.router.add_get(f"{prefix}/models", self.models)
            app.router.add_get(f"{prefix}{_REPLY}", self.kept_reply)
            app.router.add_delete(f"{prefix}{_REPLY}", self.remove_reply)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/version", self.version)
        app.router.add_delete(_SESSION, self.close_session)
        app.router.add_get("/health", self.health)

    async def reply(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        return await self._counted(self._chat(dialect, request))

    async def count(self, dialect: Dialect, request: web.Request) -> web.Response:
        """Of the prompt that a request would have; it begins no session, and nothing is sampled."""
        chat = dialect.parse(await body_of(request, self._arrival_s), Arrived(self._model_name))
        self._sessions.check_room(request.match_info.get("session_id"))
        named, secret = _named(request, chat.program_id), request.match_info.get("secret", "")
        live = self._sessions.known(named or "", secret)
        state = live.state if live is not None else self._sessions.unused()
        return _json({"input_tokens": await self._completer.count(state, chat)})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Token ids in and out, as engine=external asks them."""
        return await self._counted(self._tokens(request))

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": __version__, "server": SERVER})

    async def _counted(self, answering: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        status = _CLIENT_GONE
        try:
            response = await answering
            status = str(response.status)
            return response
        except ApiError as error:
            status = str(error.status)
            raise
        except (web.HTTPRequestEntityTooLarge, ConnectionResetError) as error:
            status = "413" if isinstance(error, web.HTTPRequestEntityTooLarge) else _CLIENT_GONE
            raise
        except Exception:
            status = "500"
            raise
        finally:
            self._answered(status)

    async def close_session(self, request: web.Request) -> web.Response:
        """Ends its calls; answered with what it used, once its traces are committed."""
        session_id = request.match_info["session_id"]
        if self._sessions.is_opened(session_id):
            raise no_session(session_id)
        try:
            summary = asdict(await self._sessions.close(session_id))
        except GatewayError as error:
            raise no_session(session_id) from error
        return _json(summary | {"breaks": {kind.value: number for kind, number in summary["breaks"].items()}})

    async def models(self, request: web.Request) -> web.Response:
        if "session_id" in request.match_info:
            self._sessions.known(request.match_info["session_id"], request.match_info.get("secret", ""))
        return _json({"object": "list", "data": [self._model]})

    async def health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def kept_reply(self, request: web.Request) -> web.Response:
        """A reply of Responses as it was, while its session is open."""
        name, reply_id = self._kept(request)
        answer = self._sessions.histories.answer(name, reply_id)
        if answer is None:
            raise no_reply(reply_id)
        return web.Response(body=answer, content_type="application/json")

    async def remove_reply(self, request: web.Request) -> web.Response:
        """Its tokens stay what they are: only its words are forgotten, and nothing goes on from it by its id."""
        name, reply_id = self._kept(request)
        if not self._sessions.histories.remove(name, reply_id):
            raise no_reply(reply_id)
        return _json({"id": reply_id, "object": "response", "deleted": True})

    def _kept(self, request: web.Request) -> tuple[str, str]:
        """The name of the session that a reply's address is of, and the reply's id. Raises ApiError."""
        reply_id, secret = request.match_info["reply_id"], request.match_info.get("secret", "")
        session_id = _named(request, session_of(reply_id)) or ""
        self._sessions.known(session_id, secret)
        return body_name(session_id, secret), reply_id

    async def _chat(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        raw = await body_of(request, self._arrival_s)
        before = partial(self._said_before, request), partial(self._answered_before, request)
        arrived = Arrived(self._model_name, self._sessions.bodies, _known_as(request, raw), *before)
        chat = dialect.parse(raw, arrived)
        async with self._called(request, chat, partial(self._complete, dialect)) as call:
            if chat.stream:
                return await _streamed(request, call, dialect, chat, self._heartbeat_s)
            return _json(dialect.whole(chat, await _result(call)))

    async def _complete(self, dialect: Dialect, live: LiveSession, chat: ChatRequest) -> ChatAnswer:
        """A client that is answered can go on from the answer."""
        answer = await self._completer.complete(live, chat)
        if chat.kept is not None:
            name, messages = body_name(live.session_id, live.secret), [*chat.kept.messages, answer.message]
            sent = orjson.dumps(dialect.whole(chat, answer))
            self._sessions.histories.keep(name, dialect.reply_id(answer), chat.kept.previous_id, messages, sent)
        return answer

    def _said_before(self, request: web.Request, program_id: str | None, reply_id: str) -> list[dict[str, Any]] | None:
        return self._sessions.histories.up_to(_talk_of(request, program_id), reply_id)

    def _answered_before(self, request: web.Request, program_id: str | None, reply_id: str) -> bytes | None:
        return self._sessions.histories.answer(_talk_of(request, program_id), reply_id)

    async def _tokens(self, request: web.Request) -> web.StreamResponse:
        wanted = parse_token_request(await body_of(request, self._arrival_s), self._names, self._vocab_size)
        async with self._called(request, wanted, self._completer.complete_ids) as call:
            return _json(token_answer(self._model_name, f"cmpl-{uuid.uuid4().hex}", wanted, await _result(call)))

    @asynccontextmanager
    async def _called(
        self, request: web.Request, wanted: Wanted, complete: Callable[[LiveSession, Wanted], Coroutine[Any, Any, T]]
    ) -> AsyncIterator["asyncio.Task[T]"]:
        """The call in its session, which ends with the block: also where its client went away. Raises ApiError."""
        self._sessions.check_room(request.match_info.get("session_id"))
        named = _named(request, wanted.program_id)
        live = self._sessions.find(named or f"anonymous-{uuid.uuid4().hex}", request.match_info.get("secret", ""))
        if isinstance(wanted, ChatRequest) and wanted.sent is not None and named:
            self._sessions.bodies.keep(body_name(live.session_id, live.secret), wanted.sent)
        call = asyncio.get_running_loop().create_task(complete(live, wanted))
        self._sessions.began(live, call)
        try:
            yield call
        finally:
            self._sessions.ended(live, call)
            if not call.done():
                call.cancel()
                await asyncio.wait({call})
            if not named and not _may_go_on(wanted, call):  # nobody can come back to it
                self._sessions.forget(live.session_id)


def _may_go_on(wanted: ChatRequest | TokenRequest, call: "asyncio.Task[Any]") -> bool:
    """Whether a client that names no session has a reply's id to go on from."""
    answered = call.done() and not call.cancelled() and call.exception() is None
    return answered and isinstance(wanted, ChatRequest) and wanted.kept is not None


def _named(request: web.Request, program_id: str | None) -> str | None:
    """The session that a request names."""
    return request.match_info.get("session_id") or program_id or request.headers.get("X-Program-Id")


def _talk_of(request: web.Request, program_id: str | None) -> str:
    """The name of a session's history."""
    return body_name(_named(request, program_id) or "", request.match_info.get("secret", ""))


def _known_as(request: web.Request, raw: bytes) -> str:
    """Under which name its session's bodies are remembered; wrong is only slow."""
    if "session_id" in request.match_info:
        return body_name(request.match_info["session_id"], request.match_info.get("secret", ""))
    return program_named(raw) or request.headers.get("X-Program-Id", "")


async def _result(call: "asyncio.Task[T]") -> T:
    """As `_outcome`; whoever is cancelled while waiting for it cancels the call. Cheaper than `asyncio.wait`."""
    try:
        return await call
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if waiting is not None and waiting.cancelling():
            raise
        return _outcome(call)


async def _streamed(
    request: web.Request, call: "asyncio.Task[ChatAnswer]", dialect: Dialect, chat: ChatRequest, heartbeat_s: float
) -> web.StreamResponse:
    """A completion that is finished in one piece, as server-sent events.

    Raises what the call raises where nothing was sent yet, ConnectionResetError when the client went away.
    """
    response = web.StreamResponse(headers=_STREAM)
    await asyncio.wait({call}, timeout=heartbeat_s)
    while not call.done():
        if not response.prepared:
            await response.prepare(request)
        await response.write(b": still generating\n\n")
        await asyncio.wait({call}, timeout=heartbeat_s)
    try:
        answer = _outcome(call)
    except Exception as error:
        if not response.prepared:
            raise
        await response.write(dialect.broken_off(refusal(request, error)))
    else:
        if not response.prepared:
            await response.prepare(request)
        for event in dialect.events(chat, answer):
            await response.write(event)
    await response.write_eof()
    return response


def _outcome(call: "asyncio.Task[T]") -> T:
    """Of a call that is done. Raises ApiError: also for one that was ended because its session was closed."""
    if call.cancelled():
        raise ApiError(410, "The session was closed while this call was in flight.", code="session_closed")
    return call.result()


def _json(payload: object) -> web.Response:
    return web.Response(body=orjson.dumps(payload), content_type="application/json")
