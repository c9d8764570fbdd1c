"""This module decides who may call the gateway, and how a request must arrive.

Invariants:
- With a token, whoever brings it (as a bearer, or as x-api-key) may call; /health needs none.
- Without one, the gateway is on a loopback address and every program of this machine may call. A web page may not: what
  a browser sends for it names another host (one that was made to lead here), or says where it is from.
- A request that does not arrive in time is not waited for, and a text that is no HTTP request leaves no traceback.
- A connection whose first head does not come within the limit is closed; aiohttp, which would wait for ever, never
  hears of it. From the first complete head on the connection belongs to aiohttp, with all that was read; its
  `keepalive_timeout` bounds the wait for each head after that. Bytes that cannot become a head (a client that speaks
  TLS, say) go to aiohttp at once, which refuses them.
"""

import asyncio
import hmac
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web

from swe_rl.gateway.errors import INVALID_JSON, ApiError, Handler, invalid_request
from swe_rl.host.addresses import is_loopback

_END_OF_HEAD = b"\r\n\r\n"
# aiohttp refuses a longer head.
_LONGEST_HEAD_BYTES = 65536
_ENCODINGS = ("gzip", "x-gzip", "deflate")
# With this number zlib reads the head of gzip or of zlib.
_GZIP_OR_ZLIB = 32
# This number is in the lower half of the first byte. Some clients send deflate without such a head.
_ZLIB_HEAD = 8
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
    """Refuses (403) what a browser sends for a web page of another origin."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (foreign := _foreign_header(request)) is not None:
            message = f"Without a key the gateway answers programs of this machine only, and no web pages: {foreign}."
            raise ApiError(403, message, kind="permission_error", code="foreign_request")
        return await handler(request)

    return check  # type: ignore[return-value]


def _foreign_header(request: web.Request) -> str | None:
    """Returns the header that shows a foreign web page, or None."""
    host = request.headers.get("Host", "")
    if not _is_here(f"//{host}"):
        return f"Host {host!r}"
    for origin in request.headers.getall("Origin", ()):
        if not _is_here(origin):
            return f"Origin {origin!r}"
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        return "Sec-Fetch-Site 'cross-site'"
    return None


@lru_cache(256)
def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


async def body_of(request: web.Request, arrival_s: float) -> bytes:
    """Reads the request's body. Raises ApiError (408) if it does not arrive within `arrival_s`."""
    # The body came with its head.
    if request.content.is_eof():
        return await request.read()
    try:
        async with asyncio.timeout(arrival_s):
            return await request.read()
    except TimeoutError as error:
        message = f"The request's body did not arrive within {arrival_s:g} s."
        raise ApiError(408, message, code="request_timeout") from error


async def plain_body_of(request: web.Request, arrival_s: float) -> bytes:
    """Reads the request's body and unpacks it. Raises HTTPRequestEntityTooLarge, and ApiError for a late body (408),
    for an unknown Content-Encoding (415) and for a body that is not in its Content-Encoding (400)."""
    packed = await body_of(request, arrival_s)
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return packed
    if encoding not in _ENCODINGS:
        message = f"The Content-Encoding {encoding[:80]!r} is not read here; send gzip, deflate, or the body as it is."
        raise ApiError(415, message, code="unsupported_encoding")
    try:
        return await asyncio.to_thread(_unpack_body, packed, encoding, request.client_max_size)
    except zlib.error as error:
        raise invalid_request(
            f"The body is not in the Content-Encoding {encoding!r}: {error}.", code=INVALID_JSON
        ) from error


def _unpack_body(packed: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Unpacks a body, at most `limit_bytes` of it. Raises zlib.error for broken data, HTTPRequestEntityTooLarge for
    more bytes."""
    bare = encoding == "deflate" and packed[:1] and packed[0] & 0x0F != _ZLIB_HEAD
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | _GZIP_OR_ZLIB)
    body = unpacking.decompress(packed, limit_bytes + 1)
    if len(body) > limit_bytes:
        raise web.HTTPRequestEntityTooLarge(limit_bytes, len(body))
    if not unpacking.eof:
        raise zlib.error("it breaks off")
    return body


class Arrivals:
    """Makes a protocol for each connection of a listening socket. Once a head is there, the protocol that `serve` makes
    takes over."""

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
