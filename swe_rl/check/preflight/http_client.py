"""One HTTP request, with this environment's proxies.

Invariants:
- http and https only; no redirect is followed.
- `user:password@` of an address is sent as basic authentication, never as a part of the host's name.
"""

import urllib.error
import urllib.request
from base64 import b64encode
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from swe_rl.check.preflight.system import Answer, Question

_MAX_BYTES = 4_000_000


def fetch(question: Question) -> Answer:
    """Raises OSError, HTTPException or ValueError where nothing answers."""
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


def _without_login(question: Question) -> tuple[str, dict[str, str]]:
    parts, headers = urlsplit(question.url), dict(question.headers)
    login, at, host = parts.netloc.rpartition("@")
    if at:
        headers["Authorization"] = "Basic " + b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), headers
