"""Server-sent events of a completion that is finished in one piece.

Invariants:
- Until the first heartbeat an error still is an HTTP error; after it, an event `{"error": ...}`.
- A client that went away stops the stream; the caller then cancels the call.
"""

import asyncio

import orjson
from aiohttp import web

from swe_rl.gateway import reply
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.reply import Answer

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def send_stream(
    request: web.Request, call: "asyncio.Task[Answer]", *, include_usage: bool, heartbeat_s: float
) -> web.StreamResponse:
    """Raises ApiError where nothing was sent yet, ConnectionResetError when the client went away."""
    response = web.StreamResponse(headers=_HEADERS)
    await asyncio.wait({call}, timeout=heartbeat_s)
    while not call.done():
        if not response.prepared:
            await response.prepare(request)
        await response.write(b": still generating\n\n")
        await asyncio.wait({call}, timeout=heartbeat_s)
    try:
        answer = outcome(call)
    except ApiError as error:
        if not response.prepared:
            raise
        await response.write(_event(error.body()))
    else:
        if not response.prepared:
            await response.prepare(request)
        for chunk in reply.chunks(answer, include_usage):
            await response.write(_event(chunk))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def outcome(call: "asyncio.Task[Answer]") -> Answer:
    """Of a call that is done. Raises ApiError: also for one that was ended because its session was closed."""
    if call.cancelled():
        raise ApiError(410, "The session was closed while this call was in flight.", code="session_closed")
    return call.result()


def _event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
