"""This module is the one way out of a sandbox without network: a Unix socket that leads to one gateway session.

Invariants:
- Of what a program sends, only the requests in FORWARDED leave, and only with a path that is exactly so. The request to
  the gateway is written anew: nothing of the program's own target is in it, and few of its headers. Everything else is
  refused here, also a request for an earlier reply by its id, because an agent has its own.
- The sandbox sees `http://127.0.0.1:PORT/v1` with the gateway's own port; the session's address, which has its secret,
  stays outside. A tiny forwarder there, started with each command, carries it to the socket. It needs python3 or node
  in the sandbox and no network of any engine.
- A client that disconnects ends its call at the gateway; an answer that breaks off there does not look whole here.
- `close` ends the listener and every connection.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from swe_rl.host.http_log import http_logger
from swe_rl.sandbox.sandbox import Door, SandboxError

# These are the requests to a model in all dialects. Nothing else is sent on to the gateway.
_ASKED = ("/chat/completions", "/messages", "/messages/count_tokens", "/responses")
FORWARDED = frozenset({*(("POST", path) for path in _ASKED), ("GET", "/models"), ("HEAD", "/models")})
SOCKET_NAME = "door.sock"
_BASE = "/v1"  # Clients of a model expect its base URL to end so.
_INSIDE = Path(__file__).parent / "inside"
_FORWARDERS = ("door.py", "door.js")
# Only these headers go on, because a request and its answer are written anew.
_PASSED_IN = ("Authorization", "X-Api-Key", "Content-Type", "Accept")
_PASSED_OUT = ("Content-Type", "Cache-Control", "Retry-After")
_MAX_CONNECTIONS = 64  # One sandbox may have so many at once, because each is a descriptor of this process.
_CONNECT_S = 10.0
_KEPT_S = 60.0  # A connection without a request is kept for so long.
_END_S = 0.1  # Calls that are in flight at the end get so long.


def direct_url(door: Door) -> str:
    """Returns the address of a door's session for commands that share this machine's network."""
    if ":" in door.host:
        host = f"[{door.host}]"
    else:
        host = door.host
    return f"http://{host}:{door.port}{door.path}"


class Doorway:
    """This is the outer end, on this machine: it listens in `folder`, which the sandbox sees as `seen_as`."""

    def __init__(self, door: Door, folder: Path, seen_as: str) -> None:
        self._door = door
        self._folder = folder
        self._seen_as = seen_as
        self._closing = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        """Returns the model's base URL as the sandbox sees it."""
        return f"http://127.0.0.1:{self._door.port}{_BASE}"

    async def open(self) -> None:
        """Begins to listen. Raises SandboxError when there can be no socket in the folder."""
        try:
            prepare_folder(self._folder)
            listener = _open_listener(self._folder)
        except OSError as error:
            raise SandboxError(f"no door to {self._door.host}:{self._door.port} in {self._folder}: {error}") from error
        self._closing.callback(_unlink_quietly, self._folder / SOCKET_NAME)
        await self._serve(listener)

    def prefix(self) -> str:
        """Returns what a command line starts with, so that the address answers in it.

        It is no line of its own, so that the command's line numbers stay.
        """
        port = self._door.port
        inside = shlex.quote(self._seen_as)
        return (
            f"if command -v python3 >/dev/null; then python3 -I -S {inside}/door.py {port} {inside}/{SOCKET_NAME}; "
            f"elif command -v node >/dev/null; then node {inside}/door.js {port} {inside}/{SOCKET_NAME}; "
            "else false; fi </dev/null >/dev/null 2>&1 || "
            "{ echo 'no way to the gateway: the sandbox needs python3 or node' >&2; exit 126; }; "
        )

    async def close(self) -> None:
        """Ends the listener and all connections. It may be called at any time, and again."""
        await self._closing.aclose()

    async def _serve(self, listener: socket.socket) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        # No connection is used twice, because the gateway may be closing it just then.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        self._closing.push_async_callback(self._client.close)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=http_logger(__name__),
            keepalive_timeout=_KEPT_S,
            shutdown_timeout=_END_S,
        )
        self._closing.push_async_callback(runner.cleanup)
        await runner.setup()
        made = runner.server
        assert made is not None

        def accept() -> asyncio.Protocol:
            if len(made.connections) < _MAX_CONNECTIONS:
                return made()
            return _TurnedAway()

        server = await asyncio.get_running_loop().create_unix_server(accept, sock=listener)
        self._closing.callback(server.close)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        # The path is compared as it was sent: it is not decoded and not made simple.
        path = request.raw_path.partition("?")[0]
        asked = (request.method, path.removeprefix(_BASE))
        if not path.startswith(_BASE) or asked not in FORWARDED:
            return _refuse_request(404, "Nothing but the model is behind this address.", "not_found")
        url = URL(direct_url(self._door) + asked[1], encoded=True)
        headers = {name: request.headers[name] for name in _PASSED_IN if name in request.headers}
        body = None
        if request.can_read_body:
            body = request.content
        response: web.StreamResponse | None = None
        try:
            async with self._client.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                said = {name: answer.headers[name] for name in _PASSED_OUT if name in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=said)
                response.content_length = answer.content_length
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
        except (aiohttp.ClientError, OSError):
            if response is None:
                return _refuse_request(502, "The gateway does not answer.", "gateway_unreachable")
            if request.transport is not None:
                request.transport.abort()
        return response


class _TurnedAway(asyncio.Protocol):
    """A connection too many meets this, and is ended at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _refuse_request(status: int, message: str, code: str) -> web.Response:
    """Returns a refusal in a form that clients of each dialect read."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"type": "error", "error": error}, status=status)


def _unlink_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def prepare_folder(folder: Path) -> None:
    """Makes the folder that a sandbox sees, with the forwarders in it. Raises OSError.

    Every user in the sandbox may read the folder, and none may write to it.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    for name in _FORWARDERS:
        shutil.copyfile(_INSIDE / name, folder / name)
        (folder / name).chmod(0o644)


def _open_listener(folder: Path) -> socket.socket:
    """Returns a listening socket in the folder, which every user may connect to. Raises OSError.

    It is bound by way of the open folder, because a socket's path may have 107 bytes only.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if Path("/proc/self/fd").is_dir():
            path = f"/proc/self/fd/{handle}/{SOCKET_NAME}"
        else:
            path = str(folder / SOCKET_NAME)
        with contextlib.suppress(FileNotFoundError):
            (folder / SOCKET_NAME).unlink()
        listener.bind(path)
        (folder / SOCKET_NAME).chmod(0o666)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(handle)
    return listener
