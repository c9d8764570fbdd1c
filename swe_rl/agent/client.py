"""This module is an OpenAI chat-completions client, as small as the agents need.

Invariants:
- One aiohttp session serves all requests of a client; `close` ends it.
- Only what may pass is retried: 429 and 503 (after their Retry-After) and broken connections, `max_retries` times.
- A message about a failure names the server, never the address: that has the secret of a session.
- Cancelling `complete` closes its connection, so the server sees that the answer is no longer wanted.
"""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from swe_rl.engine.engine import ContextOverflowError, EngineError

# Only these statuses say that the same request may be answered later.
_RETRIED = (429, 503)
# Errors of aiohttp quote the address, whose path has the secret of a session.
_PATH = re.compile(r"(https?://[^/\s]+)/\S*")
# The gateway is near: a connection that takes longer is broken.
_CONNECT_S = 10.0
# A server may ask for a longer wait. Asking sooner costs it little.
_LONGEST_WAIT_S = 30.0


class ContextOverflow(ContextOverflowError):
    """The conversation no longer fits the model's context."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """Holds a call of a tool. `arguments` are as the model wrote them: a JSON object, or not."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Holds a reply of the model. `message` is the assistant message to go on with: sent back unchanged, it extends the
    conversation."""

    content: str  # The text of the reply.
    finish_reason: str  # `stop`, `tool_calls`, or `length` where a limit cut the reply.
    usage: dict[str, int] = field(default_factory=dict)  # It has prompt_tokens, completion_tokens and total_tokens.
    tool_calls: tuple[CalledTool, ...] = ()  # The tools that the reply calls, in their order.
    message: dict[str, Any] = field(default_factory=dict)

    @property
    def cut_tokens(self) -> int:
        """Returns how many tokens the reply had when a limit cut it, or 0 if nothing cut it."""
        if self.finish_reason == "length":
            return max(1, self.usage.get("completion_tokens", 0))
        return 0


class _Retry(Exception):
    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class ChatClient:
    """Sends requests to a chat-completions server. `rng` spreads the waits; `first_wait_s` doubles with every try if
    the server names no wait."""

    def __init__(
        self,
        *,
        rng: random.Random,
        max_retries: int = 6,
        first_wait_s: float = 0.25,
        api_key: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rng = rng
        self._max_retries = max_retries
        self._first_wait_s = first_wait_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        base_url: str,
        model: str,
        tools: Sequence[Mapping[str, Any]] = (),
        segment: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """Returns one completion from `{base_url}/chat/completions`. `tools` are functions in OpenAI's shape. `segment`
        tells the gateway that this call asks for a summary or begins a segment (`gateway/chains/segment.py`).

        Raises ContextOverflow, or EngineError with the server's words (also once the retries are used up).
        """
        body: dict[str, Any] = {"model": model, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if segment is not None:
            body["segment"] = dict(segment)
        url = f"{base_url.rstrip('/')}/chat/completions"
        for attempt in range(self._max_retries + 1):
            try:
                return await self._post(url, body)
            except _Retry as retry:
                if attempt == self._max_retries:
                    raise EngineError(
                        f"{_server_of(url)} gave no completion in {attempt + 1} tries: {retry}"
                    ) from retry
                await self._sleep(self._wait_s(attempt, retry.after_s))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, url: str, body: dict[str, Any]) -> ChatReply:
        try:
            async with self._open().post(url, json=body, allow_redirects=False) as response:
                if response.status == 200:
                    return _parse_reply(await response.json(content_type=None), _server_of(url))
                said = await response.text()
                if response.status in _RETRIED:
                    raise _Retry(f"status {response.status}: {said[:500]}", _retry_after_s(response))
        except aiohttp.InvalidURL as error:
            raise EngineError(f"{url!r} is not a URL") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            said = _PATH.sub(r"\1", str(error))
            raise _Retry(f"{type(error).__name__}: {said}") from error
        except ValueError as error:
            raise EngineError(f"{_server_of(url)} answered with something that is not JSON: {error}") from error
        raise _make_error(response.status, said, _server_of(url))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No total timeout: a held or slow completion is the router's business; the caller has its own deadline.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        return self._session

    def _wait_s(self, attempt: int, after_s: float | None) -> float:
        wait_s = after_s if after_s is not None else self._first_wait_s * 2**attempt
        return min(wait_s, _LONGEST_WAIT_S) * (1.0 + 0.25 * self._rng.random())


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


def _server_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _parse_reply(payload: Any, server: str) -> ChatReply:
    try:
        choice = payload["choices"][0]
        said = choice["message"]
        content = str(said.get("content") or "")
        usage = {key: value for key, value in (payload.get("usage") or {}).items() if isinstance(value, int)}
        calls = tuple(_parse_call(call) for call in said.get("tool_calls") or ())
        message: dict[str, Any] = {"role": "assistant", "content": content}
        message |= {key: said[key] for key in ("reasoning_content", "tool_calls") if said.get(key)}
        return ChatReply(content, str(choice.get("finish_reason") or "stop"), usage, calls, message)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"{server} answered with something that is not a chat completion ({error!r})") from error


def _parse_call(call: Any) -> CalledTool:
    function = call["function"]
    return CalledTool(str(call.get("id") or ""), str(function["name"]), str(function.get("arguments") or "{}"))


def _error_code(said: str) -> str | None:
    try:
        return str(json.loads(said)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _make_error(status: int, said: str, server: str) -> EngineError:
    if status == 400 and _error_code(said) == "context_length_exceeded":
        return ContextOverflow(f"the conversation no longer fits the model's context: {said[:500]}")
    return EngineError(f"{server} refused the request with status {status}: {said[:1000]}")
