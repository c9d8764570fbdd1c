"""The gateway's HTTP routes.

Invariants:
- A call belongs to the session named in its URL, else by `program_id` in its body, else by X-Program-Id; a call without
  any is a session of its own. A session that was opened for a trajectory is reached by its URL only, which has its
  secret.
- A client closes the session that it began; one that was opened for a trajectory only its opener closes.
- A client that disconnects cancels its call.
- A stream begins once its request was read, rendered and let in, and its reply took longer than `_GRACE_S`. Until then
  an error is an HTTP error; after it, the dialect's event. Then an event of the dialect comes every `heartbeat_s`:
  clients count events as signs of life, and many count nothing else.
- What was mended in a request is in the header `X-SWE-RL-Notes` of its reply. If a call of an opened session is refused
  for its form, the session is told.
- Each dialect is at its path, at every address of a session; errors there have the dialect's form.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import orjson
from aiohttp import web

from swe_rl.gateway.callers import plain_body_of
from swe_rl.gateway.completion import AnswersCalls
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.dialects.dialect import Dialect, ReplyStream
from swe_rl.gateway.dialects.messages import Messages
from swe_rl.gateway.dialects.responses import Responses, session_of
from swe_rl.gateway.errors import (
    MODEL_NOT_FOUND,
    ApiError,
    GatewayError,
    no_reply,
    no_session,
    refuse_request,
)
from swe_rl.gateway.json_slices import LARGE_BYTES, MOST_IDS, MOST_VALUES
from swe_rl.gateway.live import LiveSession, LiveSessions, body_name
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.reply import ChatAnswer, Opening
from swe_rl.gateway.request import Arrived, ChatRequest, check_values, program_named
from swe_rl.gateway.token_request import SERVER, TokenRequest, parse_token_request, token_answer
from swe_rl.version import __version__

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Messages(), Responses())
ERROR_FORMS = {path: dialect.error for dialect in DIALECTS for path in (dialect.path, dialect.count_path) if path}
# The pattern is wide, because an instance's id may have braces.
_SESSION = "/sessions/{session_id:[^/]+}"
_OPENED = f"{_SESSION}/{{secret}}/v1"
# The two words are verbs of OpenAI's, which the gateway does not have: they are not ids.
_REPLY = Responses.path + r"/{reply_id:(?!(?:compact|input_tokens)$)[^/]+}"
_CLIENT_GONE = "499"
# Most errors of an engine come by then, and clients ask again after an HTTP error, but not after an event.
_GRACE_S = 1.0
_NOTES = "X-SWE-RL-Notes"
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
T = TypeVar("T")
Wanted = TypeVar("Wanted", ChatRequest, TokenRequest)


class StateRoutes:
    """Serves the routes that only the process with router and engines has, beside `Routes`."""

    def __init__(self, placement: Placement, metrics: GatewayMetrics) -> None:
        self._placement = placement
        self._metrics = metrics

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/router/state", self.router_state)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def router_state(self, request: web.Request) -> web.Response:
        """Shows ledgers, programs and the latest decisions with their reasons."""
        return _json_response(self._placement.snapshot())


class Routes:
    """Serves the sessions. `answered` hears each call's HTTP status, `noted` the kinds of what was mended in a call."""

    error_forms = ERROR_FORMS

    def __init__(
        self,
        sessions: LiveSessions,
        completer: AnswersCalls,
        answered: Callable[[str], None],
        noted: Callable[[frozenset[str]], None],
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
        self._noted = noted
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
            app.router.add_get(f"{prefix}/models/{{name:.+}}", self.model)
            app.router.add_get(f"{prefix}{_REPLY}", self.kept_reply)
            app.router.add_delete(f"{prefix}{_REPLY}", self.remove_reply)
        app.router.add_post(f"{_OPENED}/{{path:.+}}", self.nothing)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/version", self.version)
        app.router.add_delete(_SESSION, self.close_session)
        app.router.add_get("/health", self.health)

    async def reply(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        return await self._counted(self._chat(dialect, request))

    async def count(self, dialect: Dialect, request: web.Request) -> web.Response:
        """Counts the tokens of the prompt that a request would have. It begins no session, and nothing is sampled."""
        raw = await plain_body_of(request, self._arrival_s)
        chat = await _parse_body(raw, partial(dialect.parse, raw, Arrived(self._model_name, pinned=True)))
        self._sessions.check_room(request.match_info.get("session_id"))
        live = self._sessions.known(_session_name(request, chat.program_id) or "", request.match_info.get("secret", ""))
        state = live.state if live is not None else self._sessions.unused()
        return _json_response({"input_tokens": await self._completer.count(state, chat)})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answers token ids with token ids, as engine=external asks."""
        return await self._counted(self._tokens(request))

    async def version(self, request: web.Request) -> web.Response:
        return _json_response({"version": __version__, "server": SERVER})

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
        """Ends a session's calls. Answers with what it used, once its traces are committed."""
        session_id = request.match_info["session_id"]
        if self._sessions.is_opened(session_id):
            raise no_session(session_id)
        try:
            summary = asdict(await self._sessions.close(session_id))
        except GatewayError as error:
            raise no_session(session_id) from error
        return _json_response(summary | {"breaks": {kind.value: number for kind, number in summary["breaks"].items()}})

    def _check_session(self, request: web.Request) -> None:
        """Raises ApiError if the URL names a session that may not be used."""
        if "session_id" in request.match_info:
            self._sessions.known(request.match_info["session_id"], request.match_info.get("secret", ""))

    async def nothing(self, request: web.Request) -> web.Response:
        """Refuses a path that is not here. The session hears of it, as its program may give up because of it."""
        error = refuse_request(request, web.HTTPNotFound())
        self._refused(request, error)
        raise error

    async def models(self, request: web.Request) -> web.Response:
        self._check_session(request)
        return _json_response({"object": "list", "data": [self._model]})

    async def model(self, request: web.Request) -> web.Response:
        self._check_session(request)
        name = request.match_info["name"]
        if name not in self._names:
            message = f"The model {name[:600]!r} does not exist; this gateway serves {self._model_name!r}."
            raise ApiError(404, message, param="model", code=MODEL_NOT_FOUND)
        return _json_response(self._model)

    async def health(self, request: web.Request) -> web.Response:
        return _json_response({"status": "ok"})

    async def kept_reply(self, request: web.Request) -> web.Response:
        """Shows a reply of Responses as it was, while its session is open."""
        name, reply_id = self._kept(request)
        answer = self._sessions.histories.answer(name, reply_id)
        if answer is None:
            raise no_reply(reply_id)
        return web.Response(body=answer, content_type="application/json")

    async def remove_reply(self, request: web.Request) -> web.Response:
        """Forgets a reply's words, so that nothing goes on from its id. Its tokens stay recorded."""
        name, reply_id = self._kept(request)
        if not self._sessions.histories.remove(name, reply_id):
            raise no_reply(reply_id)
        return _json_response({"id": reply_id, "object": "response", "deleted": True})

    def _kept(self, request: web.Request) -> tuple[str, str]:
        """Returns the name of the session at a reply's address, and the reply's id. Raises ApiError."""
        reply_id = request.match_info["reply_id"]
        secret = request.match_info.get("secret", "")
        session_id = _session_name(request, session_of(reply_id)) or ""
        self._sessions.known(session_id, secret)
        return body_name(session_id, secret), reply_id

    async def _chat(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        chat = await self._read(dialect, request)
        self._noted(chat.notes)
        headers = {_NOTES: ", ".join(sorted(chat.notes))} if chat.notes else {}
        opened: asyncio.Future[Opening] = asyncio.get_running_loop().create_future()
        async with self._called(request, chat, partial(self._complete, dialect, opened)) as call:
            if chat.stream:
                response = web.StreamResponse(headers=_STREAM | headers)
                return await _stream_reply(request, response, call, opened, dialect.stream(chat), self._heartbeat_s)
            return _json_response(dialect.whole(chat, await _await_result(call)), headers)

    async def _read(self, dialect: Dialect, request: web.Request) -> ChatRequest:
        try:
            raw = await plain_body_of(request, self._arrival_s)
            before = partial(self._said_before, request), partial(self._answered_before, request)
            pinned = self._sessions.is_opened(request.match_info.get("session_id", ""))
            arrived = Arrived(self._model_name, self._sessions.bodies, _known_as(request, raw), *before, pinned=pinned)
            return await _parse_body(raw, partial(dialect.parse, raw, arrived))
        except (ApiError, web.HTTPException) as error:
            self._refused(request, refuse_request(request, error))
            raise

    def _refused(self, request: web.Request, error: ApiError) -> None:
        place = request.match_info
        self._sessions.refuse(place.get("session_id", ""), place.get("secret", ""), error)

    async def _complete(
        self, dialect: Dialect, opened: "asyncio.Future[Opening]", live: LiveSession, chat: ChatRequest
    ) -> ChatAnswer:
        """Answers a call and keeps the reply, so that its client can go on from it."""
        answer = await self._completer.complete(live, chat, opened)
        if chat.kept is not None:
            name = body_name(live.session_id, live.secret)
            messages = [*chat.kept.messages, answer.message]
            sent = orjson.dumps(dialect.whole(chat, answer))
            self._sessions.histories.keep(name, dialect.reply_id(answer), chat.kept.previous_id, messages, sent)
        return answer

    def _said_before(self, request: web.Request, program_id: str | None, reply_id: str) -> list[dict[str, Any]] | None:
        return self._sessions.histories.up_to(_talk_of(request, program_id), reply_id)

    def _answered_before(self, request: web.Request, program_id: str | None, reply_id: str) -> bytes | None:
        return self._sessions.histories.answer(_talk_of(request, program_id), reply_id)

    async def _tokens(self, request: web.Request) -> web.StreamResponse:
        raw = await plain_body_of(request, self._arrival_s)
        wanted = await _parse_body(raw, partial(parse_token_request, raw, self._names, self._vocab_size), MOST_IDS)
        async with self._called(request, wanted, self._completer.complete_ids) as call:
            return _json_response(
                token_answer(self._model_name, f"cmpl-{uuid.uuid4().hex}", wanted, await _await_result(call))
            )

    @asynccontextmanager
    async def _called(
        self, request: web.Request, wanted: Wanted, complete: Callable[[LiveSession, Wanted], Coroutine[Any, Any, T]]
    ) -> AsyncIterator["asyncio.Task[T]"]:
        """Runs the call in its session. It ends with the block, also if its client went away. Raises ApiError."""
        self._sessions.check_room(request.match_info.get("session_id"))
        named = _session_name(request, wanted.program_id)
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
            if not named and not _may_go_on(wanted, call):  # Nobody can come back to it.
                self._sessions.forget(live.session_id)


async def _parse_body(raw: bytes, parse: Callable[[], T], most_values: int = MOST_VALUES) -> T:
    """Returns what `parse` makes of a body, in a thread if the body is large. Raises ApiError."""
    if len(raw) < LARGE_BYTES:
        return parse()

    def read() -> T:
        check_values(raw, most_values)
        return parse()

    return await asyncio.to_thread(read)


def _may_go_on(wanted: ChatRequest | TokenRequest, call: "asyncio.Task[Any]") -> bool:
    """Tells whether a client that names no session got a reply's id that it can go on from."""
    answered = call.done() and not call.cancelled() and call.exception() is None
    return answered and isinstance(wanted, ChatRequest) and wanted.kept is not None


def _session_name(request: web.Request, program_id: str | None) -> str | None:
    """Returns the session that a request names."""
    return request.match_info.get("session_id") or program_id or request.headers.get("X-Program-Id")


def _talk_of(request: web.Request, program_id: str | None) -> str:
    """Returns the name of a session's history."""
    return body_name(_session_name(request, program_id) or "", request.match_info.get("secret", ""))


def _known_as(request: web.Request, raw: bytes) -> str:
    """Guesses the name under which the session's bodies are remembered. A wrong name only costs time."""
    if "session_id" in request.match_info:
        return body_name(request.match_info["session_id"], request.match_info.get("secret", ""))
    return program_named(raw) or request.headers.get("X-Program-Id", "")


async def _await_result(call: "asyncio.Task[T]") -> T:
    """Returns the call's result; a cancelled waiter cancels the call. This is cheaper than `asyncio.wait`."""
    try:
        return await call
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if waiting is not None and waiting.cancelling():
            raise
        return _outcome_of(call)


async def _stream_reply(
    request: web.Request,
    response: web.StreamResponse,
    call: "asyncio.Task[ChatAnswer]",
    opened: "asyncio.Future[Opening]",
    stream: ReplyStream,
    heartbeat_s: float,
) -> web.StreamResponse:
    """Sends a completion that is finished in one piece as server-sent events.

    Raises what the call raises if nothing was sent yet, ConnectionResetError when the client went away.
    """
    either: set[asyncio.Future[Any]] = {call, opened}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({call}, timeout=min(_GRACE_S, heartbeat_s))
    if not call.done():
        await response.prepare(request)
        await _send_events(response, stream.begin(opened.result()))
        while not (await asyncio.wait({call}, timeout=heartbeat_s))[0]:
            await response.write(stream.alive())
    try:
        answer = _outcome_of(call)
    except Exception as error:
        if not response.prepared:
            raise
        await response.write(stream.fail(refuse_request(request, error)))
    else:
        if not response.prepared:
            await response.prepare(request)
            await _send_events(response, stream.begin(Opening.of(answer)))
        await _send_events(response, stream.finish(answer))
    await response.write_eof()
    return response


async def _send_events(response: web.StreamResponse, events: Iterable[bytes]) -> None:
    for event in events:
        await response.write(event)


def _outcome_of(call: "asyncio.Task[T]") -> T:
    """Returns the result of a call that is done. Raises ApiError, also for a call that ended with its session."""
    if call.cancelled():
        raise ApiError(410, "The session was closed while this call was in flight.", code="session_closed")
    return call.result()


def _json_response(payload: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(payload), headers=headers, content_type="application/json")
