"""One HTTP request, over TCP with this environment's proxies or over a unix socket.

Invariants:
- http and https only; no redirect is followed.
- `user:password@` of an address is sent as basic authentication, never as a part of the host's name.
"""

import http.client
import socket
import urllib.error
import urllib.request
from base64 import b64encode
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from swe_rl.check.preflight.system import Answer, Question

_MAX_BYTES = 4_000_000


def fetch(question: Question) -> Answer:
    """Raises OSError, HTTPException or ValueError where nothing answers."""
    if question.socket is not None:
        return _over_socket(question, question.socket)
    url, headers = _without_login(question)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an http or https address")
    request = urllib.request.Request(url, method=question.method, headers=headers)
    opener = urllib.request.build_opener(_StayHere)
    try:
        with opener.open(request, timeout=question.timeout_s) as response:
            return Answer(response.status, response.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(_MAX_BYTES))


class _StayHere(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _over_socket(question: Question, path: str) -> Answer:
    parts = urlsplit(question.url)
    target = urlunsplit(("", "", parts.path, parts.query, ""))
    connection = _SocketConnection(path, question.timeout_s)
    try:
        connection.request(question.method, target, headers=dict(question.headers))
        response = connection.getresponse()
        return Answer(response.status, response.read())
    finally:
        connection.close()


def _without_login(question: Question) -> tuple[str, dict[str, str]]:
    parts, headers = urlsplit(question.url), dict(question.headers)
    login, at, host = parts.netloc.rpartition("@")
    if at:
        headers["Authorization"] = "Basic " + b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), headers
