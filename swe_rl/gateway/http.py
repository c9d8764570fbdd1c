"""This module holds the gateway's listening socket and the application behind it. The driver and each process of
`gateway.processes` use the same code.

Invariants:
- `close` ends every connection and frees the port, also after a failed start.
"""

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from aiohttp import web

from swe_rl.config.schema import GatewayConfig
from swe_rl.gateway.callers import Arrivals, Middleware, local_middleware, token_middleware
from swe_rl.gateway.errors import GatewayConfigError, error_middleware
from swe_rl.host.http_log import http_logger

if TYPE_CHECKING:
    from swe_rl.gateway.routes import Routes, StateRoutes

# Calls were cancelled before. Connections that are still open get so many seconds to end.
_SHUTDOWN_S = 2.0
# So many connections may wait to be accepted. All agents may come at once, and one connection too many waits a second
# for its next try.
_BACKLOG = 4096
# aiohttp reads so much of a body ahead before it stops the connection to let the handler catch up.
_READ_BYTES = 2**20


class HttpDoor:
    """Serves the routes at one address. Within `arrival_s` seconds a request's head must arrive, and then within as
    many its body; an idle connection is kept as long. A request passes the middlewares of `before` before its route."""

    def __init__(
        self,
        config: GatewayConfig,
        routes: "Routes",
        token: str | None,
        arrival_s: float,
        *before: Middleware,
        state: "StateRoutes | None" = None,
    ) -> None:
        self.runner: web.AppRunner | None = None
        self._config = config
        self._routes = routes
        self._state = state
        self._arrival_s = arrival_s
        self._middlewares = (
            error_middleware(routes.error_forms),
            token_middleware(token) if token else local_middleware(),
            *before,
        )
        self._listeners: list[asyncio.Server] = []
        self._arrivals: Arrivals | None = None

    async def start(self, shared: socket.socket | None = None) -> int:
        """Binds and serves. Returns the port. `shared` is a listening socket from which other processes accept, too.
        Raises GatewayConfigError."""
        app = web.Application(
            client_max_size=self._config.max_body_mb * 2**20,
            middlewares=self._middlewares,  # type: ignore[arg-type]
        )
        self._routes.add_to(app)
        if self._state is not None:
            self._state.add_to(app)
        self.runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            # aiohttp would answer a body that it cannot unpack by itself, in no dialect's form.
            auto_decompress=False,
            logger=http_logger(__name__),
            keepalive_timeout=self._arrival_s,
            shutdown_timeout=_SHUTDOWN_S,
            read_bufsize=_READ_BYTES,
        )
        await self.runner.setup()
        try:
            assert self.runner.server is not None
            self._arrivals = Arrivals(self.runner.server, self._arrival_s)
            loop = asyncio.get_running_loop()
            private = await loop.create_server(self._arrivals, self._config.host, self._config.port, backlog=_BACKLOG)
            self._listeners.append(private)
            # A process accepts one connection a turn of its loop, so that the others are left for processes that are
            # idle.
            if shared is not None:
                self._listeners.append(await loop.create_server(self._arrivals, sock=shared, backlog=1))
                shared.listen(_BACKLOG)
        except OSError as error:
            await self.close()
            raise GatewayConfigError(_bind_failure(self._config, error)) from error
        port: int = private.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Ends all connections and frees the port. It may be called at any time, and again."""
        for listener in self._listeners:
            listener.close()
        if self._arrivals is not None:
            self._arrivals.close()
        runner = self.runner
        self.runner = None
        if runner is not None:
            await runner.cleanup()


def open_listener(config: GatewayConfig) -> socket.socket:
    """Makes a non-blocking listening socket that several processes can share. Raises GatewayConfigError."""
    host = config.host or "0.0.0.0"
    try:
        family = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, config.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise GatewayConfigError(_bind_failure(config, error)) from error
    made.setblocking(False)
    return made


def root_url(host: str, port: int) -> str:
    return f"http://{_reachable_name(host)}:{port}"


def _reachable_name(host: str) -> str:
    """Returns the name by which others reach this host if it listens on every address, else the host itself."""
    if host in ("", "0.0.0.0", "::"):
        return socket.gethostname()
    if ":" in host:
        return f"[{host}]"
    return host


def _bind_failure(config: GatewayConfig, error: OSError) -> str:
    where = f"gateway.host={config.host}, gateway.port={config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the port is in use; choose another gateway.port, or 0 for any free one"
    return (
        f"the gateway cannot listen ({where}: {error.strerror or error}); choose another gateway.host or gateway.port"
    )
