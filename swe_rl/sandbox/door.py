"""The one way out of a sandbox without network: a Unix socket that leads to one session of the gateway.

Invariants:
- Of what a program sends, FORWARDED leaves, and only with a path that is exactly so. The request to the gateway is
  written anew: nothing of the program's own target is in it, and few of its headers. Everything else is answered here,
  replies by their id among it: an agent has its own.
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
from swe_rl.sandbox.protocol import Door, SandboxError

_ASKED = ("/chat/completions", "/messages", "/messages/count_tokens", "/responses")
FORWARDED = frozenset({*(("POST", path) for path in _ASKED), ("GET", "/models"), ("HEAD", "/models")})
SOCKET_NAME = "door.sock"
_BASE = "/v1"
_INSIDE = Path(__file__).parent / "inside"
_FORWARDERS = ("door.py", "door.js")
_PASSED_IN = ("Authorization", "X-Api-Key", "Content-Type", "Accept")
_PASSED_OUT = ("Content-Type", "Cache-Control", "Retry-After")
_MAX_CONNECTIONS = 64  # at once, of one sandbox: each is a descriptor of this process
_CONNECT_S = 10.0
_KEPT_S = 60.0  # a connection without a request
_END_S = 0.1  # for calls that are in flight at the end


def direct_url(door: Door) -> str:
    """The address of a door's session for commands that share this machine's network."""
    host = f"[{door.host}]" if ":" in door.host else door.host
    return f"http://{host}:{door.port}{door.path}"


class Doorway:
    """The outer end, on this machine: listens in `folder`, which the sandbox sees as `seen_as`."""

    def __init__(self, door: Door, folder: Path, seen_as: str) -> None:
        self._door = door
        self._folder = folder
        self._seen_as = seen_as
        self._closing = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._door.port}{_BASE}"

    async def open(self) -> None:
        """Raises SandboxError when there can be no socket in the folder."""
        try:
            prepare_folder(self._folder)
            listener = _listener(self._folder)
        except OSError as error:
            raise SandboxError(f"no door to {self._door.host}:{self._door.port} in {self._folder}: {error}") from error
        self._closing.callback(_unlink, self._folder / SOCKET_NAME)
        await self._serve(listener)

    def prefix(self) -> str:
        """What a command line starts with, so that the address answers in it. One line: line numbers stay."""
        port, inside = self._door.port, shlex.quote(self._seen_as)
        return (
            f"if command -v python3 >/dev/null; then python3 -I -S {inside}/door.py {port} {inside}/{SOCKET_NAME}; "
            f"elif command -v node >/dev/null; then node {inside}/door.js {port} {inside}/{SOCKET_NAME}; "
            "else false; fi </dev/null >/dev/null 2>&1 || "
            "{ echo 'no way to the gateway: the sandbox needs python3 or node' >&2; exit 126; }; "
        )

    async def close(self) -> None:
        """May be called at any time and again."""
        await self._closing.aclose()

    async def _serve(self, listener: socket.socket) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        # No connection is used twice: the gateway may be closing it just then.
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
            return made() if len(made.connections) < _MAX_CONNECTIONS else _TurnedAway()

        server = await asyncio.get_running_loop().create_unix_server(accept, sock=listener)
        self._closing.callback(server.close)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]  # as it was sent: not decoded, not made simple
        asked = (request.method, path.removeprefix(_BASE))
        if not path.startswith(_BASE) or asked not in FORWARDED:
            return _refusal(404, "Nothing but the model is behind this address.", "not_found")
        url = URL(direct_url(self._door) + asked[1], encoded=True)
        headers = {name: request.headers[name] for name in _PASSED_IN if name in request.headers}
        body = request.content if request.can_read_body else None
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
                return _refusal(502, "The gateway does not answer.", "gateway_unreachable")
            if request.transport is not None:
                request.transport.abort()
        return response


class _TurnedAway(asyncio.Protocol):
    """What a connection too many meets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _refusal(status: int, message: str, code: str) -> web.Response:
    """In a form that clients of each dialect read."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"type": "error", "error": error}, status=status)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def prepare_folder(folder: Path) -> None:
    """Makes the folder that a sandbox sees: open to every user in it, written by none. Raises OSError."""
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    for name in _FORWARDERS:
        shutil.copyfile(_INSIDE / name, folder / name)
        (folder / name).chmod(0o644)


def _listener(folder: Path) -> socket.socket:
    """Bound by way of an open folder: a socket's path may have 107 bytes only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{handle}/{SOCKET_NAME}" if Path("/proc/self/fd").is_dir() else str(folder / SOCKET_NAME)
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
