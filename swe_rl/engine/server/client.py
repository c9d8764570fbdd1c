"""The module is one keep-alive HTTP session to one server, with one error for whatever goes wrong on the way.

Invariants:
- A request is sent again only when its connection was refused, so no request is ever served twice.
- The key goes into the Authorization header and nowhere else: no message, log line or name holds it.
- Cancelling a request closes its connection, by which vLLM knows that nobody waits any more.
- A server is late by its own time: what it answered while our event loop stood still is an answer.
"""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import orjson

from swe_rl.engine.engine import EngineError
from swe_rl.engine.token_ids import encode_plain
from swe_rl.errors import UserError
from swe_rl.host.addresses import base_address, is_loopback

# vLLM closes idle connections after 5 s; a request that meets the closing one would be lost.
_KEEPALIVE_S = 3.0
_CONNECT_S = 10.0
# A wait for an answer is cut into slices of this length: what is later than that is our own delay.
_SLICE_S = 0.25
# A refused connection is tried again after this long: a server that is just starting to listen refuses for a moment.
_REFUSED_PAUSE_S = 0.1
# A host that answers slow requests by redirects to the result (Modal: one every 150 s) may need many of them.
_MAX_REDIRECTS = 64
_SHOWN_CHARS = 400
T = TypeVar("T")


class ServerFailingError(EngineError):
    """The server fails (status 500 and above) or is gone: perhaps the first sign of its end."""


class ConnectionLostError(ServerFailingError):
    """The server, or the way to it, went away; whether the request was served is not known."""


class UnreachableError(ConnectionLostError):
    """Nothing listens at the server's address, or it cannot be reached; nothing was sent."""


class SilentError(EngineError):
    """The server accepted a request and did not answer it in time."""


class EngineUrlError(UserError):
    """An address in engine.urls is none."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """An answer of a server. It asks for no more requests before `retry_after_s`."""

    status: int
    body: bytes
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Returns the answer's JSON. Raises EngineError."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"it answered {self.status} with something that is not JSON: {self.reason()}") from error

    def reason(self) -> str:
        """Returns what the server says about a refusal, shortened."""
        text = self.body.decode(errors="replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            return _shorten_text(text)
        if isinstance(answer, dict):
            error = answer.get("error", answer.get("detail", text))
        else:
            error = text
        return _shorten_text(str(error.get("message", error)) if isinstance(error, dict) else str(error))


class Carrier(Protocol):
    """Another process that has the ids of a prompt."""

    async def post(self, client: "HttpClient", path: str, body: Mapping[str, Any]) -> ServerAnswer:
        """Calls `client.post` in that process. Raises what that raises."""


class HttpClient:
    """A client of one server. `url` may end in `/v1`; a refused connection is tried `tries` times.

    With `direct` requests go past any proxy, to another node of the same job. `headers` go into each request in place
    of the key's, and then no redirect is followed, as it could take a key elsewhere. Raises EngineUrlError.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        tries: int = 4,
        direct: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = base_url(url)
        self._direct = direct
        self._headers = headers
        self._api_key = api_key
        self._tries = tries
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        if self._session is not None:
            return
        if self._api_key:
            headers = {"Authorization": f"Bearer {self._api_key}"}
        else:
            headers = {}
        if self._headers is not None:
            headers = dict(self._headers)
        host = urlsplit(self.url).hostname or ""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            # A cluster's proxy leads out, not to this machine.
            trust_env=not self._direct and not is_loopback(host),
            auto_decompress=True,
        )

    async def close(self) -> None:
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, timeout_s: float | None = 10.0) -> ServerAnswer:
        return await self._request("GET", path, None, timeout_s)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ServerAnswer:
        """Returns the answer, also one of status 400 and above. Raises ConnectionLostError, EngineError."""
        return await self._request("POST", path, orjson.dumps(body or {}, default=encode_plain), timeout_s)

    def settings(self) -> dict[str, Any]:
        """Returns what makes a client like this one elsewhere; the key is among it."""
        return {"url": self.url, "api_key": self._api_key, "tries": self._tries, "direct": self._direct}

    async def _request(self, method: str, path: str, body: bytes | None, timeout_s: float | None) -> ServerAnswer:
        for attempt in range(1, self._tries + 1):
            try:
                sending = self._send(method, path, body)
                return await (sending if timeout_s is None else _limit_sending(sending, timeout_s))
            except aiohttp.ClientConnectorError as error:
                if attempt == self._tries:
                    raise UnreachableError(f"{self.url} cannot be reached: {_short_cause(error)}") from error
                await asyncio.sleep(_REFUSED_PAUSE_S * 2**attempt)
            except TimeoutError as error:
                if timeout_s is None:
                    within = "in time"
                else:
                    within = f"within {timeout_s:g} s"
                raise SilentError(f"{self.url}{path} did not answer {within}") from error
            except aiohttp.ClientError as error:
                raise ConnectionLostError(f"{self.url}{path} broke off: {_short_cause(error)}") from error
        raise AssertionError("unreachable")

    async def _send(self, method: str, path: str, body: bytes | None) -> ServerAnswer:
        if self._session is None:
            raise EngineError(f"the client of {self.url} is not open")
        async with self._session.request(
            method,
            self.url + path,
            data=body,
            headers={"Content-Type": "application/json"} if body is not None else {},
            allow_redirects=self._headers is None,
            max_redirects=_MAX_REDIRECTS,
        ) as response:
            waits = _retry_after_s(response.headers.get("Retry-After", ""))
            return ServerAnswer(response.status, await response.read(), waits)


# No server means a longer pause: such a number is a fault of its own, and would end a run for good.
_LONGEST_RETRY_S = 366 * 86400.0


def _retry_after_s(header: str) -> float | None:
    """Returns the seconds that a header of seconds or a date asks for; None for anything else."""
    try:
        if header.strip().isdecimal():
            seconds = float(header)
        else:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if seconds <= _LONGEST_RETRY_S else None


async def _limit_sending(sending: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Returns what `sending` returns. Raises TimeoutError, or what `sending` raises.

    Time in which our event loop stood still is not the server's: what came meanwhile is an answer.
    """
    task = asyncio.ensure_future(sending)
    left_s = limit_s
    slice_s = min(_SLICE_S, limit_s / 2)
    try:
        while left_s > 0:
            if (await asyncio.wait({task}, timeout=slice_s))[0]:
                return task.result()
            # A slice counts as long as it was meant to be, however late it is by now.
            left_s -= slice_s
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def base_url(url: str) -> str:
    """Returns scheme, host and path, without a closing `/v1`. Raises EngineUrlError."""
    try:
        return base_address(url)
    except ValueError as problem:
        raise EngineUrlError(
            f"engine.urls: {problem}. Write http://host:8000/v1; a server's key is VLLM_API_KEY in the environment"
        ) from problem


def _short_cause(error: Exception) -> str:
    return _shorten_text(str(error)) or type(error).__name__


def _shorten_text(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= _SHOWN_CHARS:
        return line
    return f"{line[:_SHOWN_CHARS]}..."
