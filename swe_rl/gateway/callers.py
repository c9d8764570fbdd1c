"""Who may call the gateway, and how a request must arrive.

Invariants:
- With a token, whoever brings it (as a bearer, or as x-api-key) may call; /health needs none.
- Without one, the gateway is on a loopback address and every program of this machine may call. A web page is no such
  program: what a browser sends for it names another host (one that was made to lead here), or says where it is from.
- A request that does not arrive in time is not waited for, and what is no request leaves no traceback.
- A connection whose first head does not come within the limit is closed; aiohttp, which would wait for ever, never
  hears of it. From the first complete head on it is aiohttp's, with all that was read; its `keepalive_timeout` bounds
  the wait for each head after that. What cannot become a head (a client that speaks TLS, say) it refuses at once.
"""

import asyncio
import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web

from swe_rl.gateway.errors import ApiError, Handler
from swe_rl.host.addresses import is_loopback

_END_OF_HEAD = b"\r\n\r\n"
_LONGEST_HEAD_BYTES = 65536  # more is aiohttp's to refuse
Middleware = Callable[[web.Request, Handler], "web.StreamResponse"]


def token_middleware(token: str) -> Middleware:
    """Refuses (401) whoever does not bring the token, as OpenAI's or as Anthropic's clients do."""
    expected = f"Bearer {token}".encode()
    expected_key = token.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        key = request.headers.get("X-Api-Key", "").encode(errors="surrogateescape")
        brought = hmac.compare_digest(given, expected) or hmac.compare_digest(key, expected_key)
        if request.path != "/health" and not brought:
            message = "The gateway needs its token: send `Authorization: Bearer TOKEN`, or `x-api-key: TOKEN`."
            raise ApiError(401, message, kind="authentication_error", code="invalid_api_key")
        return await handler(request)

    return check  # type: ignore[return-value]


def local_middleware() -> Middleware:
    """Refuses (403) what a browser sends for a page of somebody else's."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (foreign := _foreign(request)) is not None:
            message = f"Without a key the gateway answers programs of this machine only, and no web pages: {foreign}."
            raise ApiError(403, message, kind="permission_error", code="foreign_request")
        return await handler(request)

    return check  # type: ignore[return-value]


def _foreign(request: web.Request) -> str | None:
    """The header that tells, or None."""
    host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
    if not _is_here(f"//{host}"):
        return f"Host {host!r}"
    if origin is not None and not _is_here(origin):
        return f"Origin {origin!r}"
    return "Sec-Fetch-Site 'cross-site'" if request.headers.get("Sec-Fetch-Site") == "cross-site" else None


@lru_cache(256)
def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


async def body_of(request: web.Request, arrival_s: float) -> bytes:
    """Raises ApiError (408) for one that does not arrive within `arrival_s`."""
    if request.content.is_eof():  # it came with its head
        return await request.read()
    try:
        async with asyncio.timeout(arrival_s):
            return await request.read()
    except TimeoutError as error:
        message = f"The request's body did not arrive within {arrival_s:g} s."
        raise ApiError(408, message, code="request_timeout") from error


class Arrivals:
    """A factory of protocols for a listening socket; `serve` makes the protocol that takes over."""

    def __init__(self, serve: Callable[[], asyncio.Protocol], limit_s: float) -> None:
        self.serve = serve
        self.limit_s = limit_s
        self.open: set[asyncio.Transport] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Arriving(self)

    def close(self) -> None:
        for transport in list(self.open):
            transport.abort()


class _Arriving(asyncio.Protocol):
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.open.add(self._transport)
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(self._arrivals.limit_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        begin = max(0, len(self._head) - len(_END_OF_HEAD))
        self._head += data
        first = self._head.lstrip(b"\r\n")[:1]
        whole = first and self._head.find(_END_OF_HEAD, begin) >= 0
        if whole or len(self._head) > _LONGEST_HEAD_BYTES or (first and not first.isalpha()):
            self._hand_over()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def _hand_over(self) -> None:
        self._leave()
        server = self._arrivals.serve()
        self._transport.set_protocol(server)
        server.connection_made(self._transport)
        server.data_received(bytes(self._head))

    def _leave(self) -> None:
        self._limit.cancel()
        self._arrivals.open.discard(self._transport)
