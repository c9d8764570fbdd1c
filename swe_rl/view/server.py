"""This module is the server behind `job=view`: it serves a page, its scripts, and the data of runs as JSON.

Invariants:
- It answers this machine alone: it listens on loopback, and a request for another host's name (DNS rebinding) is
  refused. Without the token of this start nothing is answered; the page's address carries it once, then a cookie does.
- It reads, and only GET is known. Files are reached by names that a look at the disk gave, never by a path.
- What agents wrote leaves as JSON or as plain text. The page's policy (CSP) lets no script run but the files here.
- Reading is done in threads: a large file stops no other request. Secrets of the environment are masked once more.
"""

import asyncio
import errno
import hmac
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import web

from swe_rl.errors import SweRlError, UserError
from swe_rl.files.disk import read_file
from swe_rl.files.json_text import encode_json
from swe_rl.files.redactor import Redactor
from swe_rl.host.addresses import LOOPBACK, is_loopback
from swe_rl.host.http_log import http_logger
from swe_rl.view.answers import Answer, Answers, guard_answer
from swe_rl.view.files import ViewError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# The page loads these scripts, those of the report first.
REPORT_SCRIPTS = ("charts.js", "viewer.js", "page.js")
VIEW_SCRIPTS = ("overview.js", "run.js", "trajectory.js", "view.js")
_SCRIPT = "text/javascript"
_STYLE = "text/css"
_ASSETS = {
    **dict.fromkeys(REPORT_SCRIPTS, ("swe_rl.report", _SCRIPT)),
    **dict.fromkeys(VIEW_SCRIPTS, ("swe_rl.view", _SCRIPT)),
    "page.css": ("swe_rl.report", _STYLE),
    "print.css": ("swe_rl.report", _STYLE),
    "view.css": ("swe_rl.view", _STYLE),
}
# What agents wrote must run no script, so the page may load from this server alone, and nothing may embed it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# A browser may keep a connection open; the end of the server waits no longer than this for it.
_SHUTDOWN_S = 1.0
# A timeline is sent in pieces of so many events, so that a large one is never whole in memory.
_EVENTS_A_PIECE = 2000


class ViewServer:
    """This server is a context manager that listens for the time of its block; a `port` of 0 is any free one.

    Entering it raises UserError where it cannot listen.
    """

    def __init__(self, root: Path, port: int = 0) -> None:
        self.port = port
        self.token = secrets.token_urlsafe(24)
        self._answers = Answers(root)
        self._redactor = Redactor.from_environ()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Returns the address of the page with the token, as a user opens it."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[_make_middleware(self._is_allowed)])
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", _serve_asset)
        app.router.add_get("/grade_log", self._grade_log)
        app.router.add_get("/trace", self._trace)
        for name, answer in self._answers.by_name.items():
            app.router.add_get(f"/api/{name}", self._json(answer))
        self._runner = web.AppRunner(
            app, access_log=None, logger=http_logger(__name__), shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, LOOPBACK, self.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UserError(_bind_failure(self.port, error)) from error
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def _cookie(self) -> str:
        # Browsers send a host's cookies to all of its ports, so the name has to tell several servers apart.
        return f"swe_rl_view_{self.port}"

    def _is_allowed(self, request: web.Request) -> bool:
        brought = request.cookies.get(self._cookie)
        return self._is_token(brought) or (request.path == "/" and self._is_token(request.query.get("token")))

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if "token" not in request.query:
            return web.Response(text=_text_of("swe_rl.view", "view.html"), content_type="text/html")
        # The browser is sent on to an address without the token, so that the token is in no history.
        answer = web.Response(status=302, headers={"Location": "/"})
        # Links of report.html have to open, and a file is another site for the browser. Lax gives other sites nothing:
        # they may send a user here, but read no answer.
        answer.set_cookie(self._cookie, self.token, httponly=True, samesite="Lax", path="/")
        return answer

    def _json(self, answer: Answer) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            body = await asyncio.to_thread(
                guard_answer, lambda: self._redactor.data_json(encode_json(answer(_query_lists(request))))
            )
            return web.Response(body=body, content_type="application/json")

        return handler

    async def _grade_log(self, request: web.Request) -> web.StreamResponse:
        def text() -> str:
            path = self._answers.grade_log(_query_lists(request))
            return self._redactor.text(read_file(path).decode(errors="replace"))

        return web.Response(text=await asyncio.to_thread(guard_answer, text), content_type="text/plain")

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        """Answers with the timeline for Perfetto as a file to save, which is sent in pieces."""
        name, pieces = await asyncio.to_thread(guard_answer, lambda: self._answers.trace(_query_lists(request)))
        answer = web.StreamResponse(headers=_HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'})
        answer.content_type = "application/json"
        await answer.prepare(request)
        while piece := await asyncio.to_thread(lambda: b"".join(islice(pieces, _EVENTS_A_PIECE))):
            await answer.write(piece)
        return answer


def _make_middleware(is_allowed: Callable[[web.Request], bool]) -> Any:
    """Returns the middleware around all handlers.

    It refuses who may not ask before anything is looked at, and answers with one sentence as plain text where something
    goes wrong.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer: web.StreamResponse
        if not _is_here(request.host):
            answer = _text_response(403, "This server answers to this machine's own names only (127.0.0.1, localhost).")
        elif not is_allowed(request):
            answer = _text_response(
                403,
                "This page needs its token: open the whole address that job=view printed. Each start has another one.",
            )
        else:
            try:
                answer = await handler(request)
            except ViewError as error:
                answer = _text_response(error.status, str(error))
            except (SweRlError, OSError) as error:
                answer = _text_response(500, str(error))
            except web.HTTPException as error:
                answer = _text_response(error.status, error.reason)
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    return middleware


def _query_lists(request: web.Request) -> dict[str, list[str]]:
    return {key: request.query.getall(key) for key in request.query}


def _text_response(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", content_type="text/plain")


async def _serve_asset(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in _ASSETS:
        raise web.HTTPNotFound
    package, kind = _ASSETS[name]
    return web.Response(text=_text_of(package, name), content_type=kind)


def _text_of(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _is_here(host: str) -> bool:
    """Tells whether a request names this machine, with any port, because a tunnel (ssh -L) may begin at another one."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _bind_failure(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"job.port={port}: the port is in use. Choose another one, or job.port=0 for any that is free."
    return f"job.port={port}: job=view cannot listen there ({error.strerror or error}). Choose another port, or 0."
