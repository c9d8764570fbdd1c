"""Plays one session of a resource server of NeMo-Gym: it is seeded, its tools are called, and the answer is verified.

Invariants:
- A session is the server's cookie. Each has an HTTP client of its own, so no two sessions share one.
- A tool that answers with a `detail`, or raises (status 500), may do so for any call that a model makes up. That is
  told to the model, as NeMo-Gym's own agents do, and `verify` shows whether the server still works.
- Whatever else the server fails at raises EpisodeError, from which no reward is made.
- No redirect is followed, and no proxy is used.
"""

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from swe_rl.env.served import EpisodeError, RefusedActionError
from swe_rl.errors import one_line

_MOST_BYTES = 16_000_000
_CONNECT_S = 10.0
_SHOWN_CHARS = 300


class GymSession:
    """A session at the server of a clean address: `async with GymSession(...) as session`. It begins with `seed`."""

    def __init__(self, address: str, *, step_timeout_s: float) -> None:
        self._address = address
        self._step_timeout_s = step_timeout_s
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # An address may be a number, for which a jar keeps no cookies by default. The server reads the cookie as it
        # wrote it, without quotes.
        jar = aiohttp.CookieJar(unsafe=True, quote_cookie=False)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._http = aiohttp.ClientSession(timeout=timeout, cookie_jar=jar)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def seed(self, row: Mapping[str, Any]) -> None:
        """Begins the session with a row. Raises EpisodeError."""
        answer = self._require_object("seed_session", *await self._post("seed_session", row))
        if answer.get("mcp"):
            raise EpisodeError(
                f"{self._address} offers its tools over MCP, which env=nemo_gym does not speak; it calls tools by HTTP"
            )

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Returns what a tool answers. Raises RefusedActionError where the server says why not, and EpisodeError."""
        status, text = await self._post(tool, arguments)
        if 200 <= status < 300:
            return text
        detail = _read_detail(text)
        if status >= 400 and detail is not None:
            raise RefusedActionError(f"status {status}: {detail}")
        if status == 500:
            raise RefusedActionError(f"status {status}: {_shown(text)}")
        raise self._failed(tool, status, text)

    async def verify(self, row: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the server's verdict, which has a `reward` of any type. Raises EpisodeError."""
        answer = self._require_object("verify", *await self._post("verify", {**row, "response": response}))
        if "reward" not in answer:
            raise EpisodeError(f"{self._address} answered verify without a reward: {_shown(json.dumps(answer))}")
        return answer

    async def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        assert self._http is not None
        try:
            async with (
                asyncio.timeout(self._step_timeout_s),
                self._http.post(f"{self._address}/{path}", json=body, allow_redirects=False) as answer,
            ):
                read = await answer.content.read(_MOST_BYTES)
                while len(read) < _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
                    read += more
                if len(read) >= _MOST_BYTES:
                    raise EpisodeError(f"{self._address} answered {path} with {_MOST_BYTES} bytes or more")
                return answer.status, read.decode("utf-8", "replace")
        except TimeoutError as error:
            raise EpisodeError(f"{self._address} gave no answer to {path} in {self._step_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EpisodeError(f"{self._address} broke off at {path}: {type(error).__name__}: {error}") from error

    def _require_object(self, path: str, status: int, text: str) -> dict[str, Any]:
        if not 200 <= status < 300:
            raise self._failed(path, status, text)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise EpisodeError(f"{self._address} answered {path} with no JSON object: {_shown(text)}")
        return answer

    def _failed(self, path: str, status: int, text: str) -> EpisodeError:
        return EpisodeError(f"{self._address} failed at {path}: status {status}: {_shown(text)}")


def _read_detail(text: str) -> str | None:
    """Returns the `detail` of an answer as text, or None where the server did not write one."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or "detail" not in answer:
        return None
    detail = answer["detail"]
    if isinstance(detail, str):
        return detail
    return json.dumps(detail, ensure_ascii=False)


def _shown(text: str) -> str:
    return one_line(text)[:_SHOWN_CHARS]
