"""All of the gateway's processes share one address if clients begin sessions themselves. This module finds the process
that a request belongs to.

Invariants:
- A connection belongs to the process that accepted it, a session to the process where it began. The driver knows which
  process that is. It is asked about every session that is not here: two processes never have the same session.
- A request for a session of another process is passed on to it as it came, and so is its answer. If the client goes
  away, its request ends there, too.
- The driver hears first of each session that begins here, and gives the numbers that its traces go on with. A session
  that comes to nothing is given back.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from swe_rl.gateway.callers import Middleware, body_of, plain_body_of
from swe_rl.gateway.dialects.responses import gone_on_from, session_of
from swe_rl.gateway.errors import Handler, unavailable_error
from swe_rl.gateway.json_repair import read_json
from swe_rl.gateway.processes.link import Head
from swe_rl.gateway.request import program_named

# Only the driver has what these paths show.
_STATE = frozenset({"/metrics", "/router/state"})
# These headers are about one connection, or would make the other process take the request for a web page's.
_NOT_PASSED_ON = frozenset({"host", "origin", "connection", "keep-alive", "transfer-encoding", "content-length", "te"})
_CONNECT_S = 10.0
_ANONYMOUS = "anonymous-"
_BY_REPLY = b'"previous_response_id"', b'"item_reference"'
_PROGRAM = b'"program_id"'


class SharedAddress:
    """Passes requests on to the process that has their session. `whose(session, begins)` asks the driver, `send` tells
    it something, and `has` tells whether a session is here."""

    def __init__(
        self,
        whose: Callable[[str, bool], Awaitable[Head]],
        send: Callable[[Head], None],
        has: Callable[[str], bool],
        *,
        driver_port: int,
        arrival_s: float,
    ) -> None:
        self._whose = whose
        self._send = send
        self._has = has
        self._driver_port = driver_port
        self._arrival_s = arrival_s
        # Has the sessions of clients that are here, or about to be, and the numbers that they go on with.
        self._claims: dict[str, tuple[int, int]] = {}
        self._asking: Counter[str] = Counter()
        self._client: aiohttp.ClientSession | None = None

    def numbers(self, session_id: str) -> tuple[int, int]:
        """Returns the turn and the chain that a session here goes on with. Raises ApiError if this process may not
        begin the session."""
        if session_id in self._claims:
            return self._claims[session_id]
        if not session_id.startswith(_ANONYMOUS):
            raise unavailable_error(f"Session {session_id!r} ended just now; send the call again.", "session_ended")
        self._send({"kind": "begun", "session": session_id})
        self._claims[session_id] = (0, 0)
        return 0, 0

    def release(self, session_id: str) -> None:
        if self._claims.pop(session_id, None) is not None:
            self._send({"kind": "released", "session": session_id})

    def middleware(self) -> Middleware:
        @web.middleware
        async def theirs(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path in _STATE:
                return await self._passed_on(request, self._driver_port)
            name = await self._name(request)
            if name is None or self._has(name):
                return await handler(request)
            self._asking[name] += 1
            try:
                port = await self._port(name, begins=_begins_call(request))
                return await (handler(request) if port is None else self._passed_on(request, port))
            finally:
                self._asking[name] -= 1
                if not self._asking[name]:
                    del self._asking[name]
                    if not self._has(name):
                        self.release(name)

        return theirs  # type: ignore[return-value]

    async def _port(self, name: str, *, begins: bool) -> int | None:
        """Returns the port of the process that has the session, or None if it is here or nowhere."""
        answer = await self._whose(name, begins)
        if answer["port"] is None and answer["numbers"] is not None:
            self._claims[name] = (answer["numbers"][0], answer["numbers"][1])
        port: int | None = answer["port"]
        return port

    async def _name(self, request: web.Request) -> str | None:
        """Returns the session that a request names, by its route's rules, or None."""
        if "session_id" in request.match_info:
            return request.match_info["session_id"]
        if "reply_id" in request.match_info:
            return session_of(request.match_info["reply_id"]) or request.headers.get("X-Program-Id") or None
        raw = b""
        if request.method == "POST":
            raw = await plain_body_of(request, self._arrival_s)
        return _find_session(raw) or request.headers.get("X-Program-Id") or None

    async def _passed_on(self, request: web.Request, port: int) -> web.StreamResponse:
        """Sends the request to the other process and returns its answer. Raises ApiError if that process is gone."""
        body = await body_of(request, self._arrival_s)
        url = URL(f"http://127.0.0.1:{port}{request.raw_path}", encoded=True)
        try:
            async with self._opened().request(
                request.method, url, headers=_kept_headers(request.headers), data=body
            ) as answer:
                if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                    return await _stream_answer(request, answer)
                return web.Response(
                    status=answer.status, headers=_kept_headers(answer.headers), body=await answer.read()
                )
        except aiohttp.ClientError as error:
            message = "The process of gateway.processes that had this conversation is gone; send the call again."
            raise unavailable_error(message, "process_lost") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._client is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            connector = aiohttp.TCPConnector(limit=0)
            self._client = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self._client


def _begins_call(request: web.Request) -> bool:
    return request.method == "POST" and not request.path.endswith("/count_tokens")


def _find_session(raw: bytes) -> str | None:
    """Finds the session's name in a body as a dialect's parser does. A body is parsed only if it has the words, and not
    near its begin or end."""
    by_reply = any(words in raw for words in _BY_REPLY)
    times = raw.count(_PROGRAM)
    if not times and not by_reply:
        return None
    if times == 1 and not by_reply and (name := program_named(raw)):
        return name
    try:
        body: Any = read_json(raw)
    except orjson.JSONDecodeError:
        # The request's route tells the client.
        return None
    if not isinstance(body, dict):
        return None
    named = body.get("program_id")
    if isinstance(named, str) and named:
        return named
    return session_of(gone_on_from(body))


def _kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}
    return {name: value for name, value in passed.items() if not name.lower().startswith("sec-fetch-")}


async def _stream_answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_kept_headers(answer.headers))
    await response.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await response.write(part)
    except aiohttp.ClientError:
        # What was sent cannot be taken back, so the stream breaks off.
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from None
    await response.write_eof()
    return response
