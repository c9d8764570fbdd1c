"""Who may call the gateway, and how a request must arrive.

Invariants:
- With a token, whoever brings it may call; /health needs none.
- Without one, the gateway is on a loopback address and every program of this machine may call. A web page is no such
  program: what a browser sends for it names another host (one that was made to lead here), or says where it is from.
- A request that does not arrive in time is not waited for, and what is no request leaves no traceback.
"""

import asyncio
import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from swe_rl.gateway.errors import ApiError, Handler
from swe_rl.host.loopback import is_loopback

Middleware = Callable[[web.Request, Handler], "web.StreamResponse"]


def token_middleware(token: str) -> Middleware:
    """Refuses (401) whoever does not bring the bearer token."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path != "/health" and not hmac.compare_digest(given, expected):
            message = "The gateway needs its token: send `Authorization: Bearer TOKEN`."
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


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


async def body_of(request: web.Request, arrival_s: float) -> bytes:
    """Raises ApiError (408) for one that does not arrive within `arrival_s`."""
    try:
        async with asyncio.timeout(arrival_s):
            return await request.read()
    except TimeoutError as error:
        message = f"The request's body did not arrive within {arrival_s:g} s."
        raise ApiError(408, message, code="request_timeout") from error
