"""An OpenAI-compatible chat server whose model is a function: for tests and drills of agents.

Invariants:
- Binds loopback, any free port; `async with` stops it.
- Every request body is kept in `requests`, in order of arrival.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from aiohttp import web

from swe_rl.errors import RunError


@dataclass(frozen=True, slots=True)
class FakeReply:
    """A completion, or an HTTP error when `status` is not 200 (then `content` is the error's message)."""

    content: str
    finish_reason: str = "stop"
    status: int = 200
    error_code: str | None = None
    delay_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()  # tools called: name, and arguments or their JSON text


Script = Callable[[list[dict[str, Any]]], FakeReply | str]


class FakeChatServer:
    """`script` gets the messages of a request and answers; see `replies` for a fixed list. With `repeats_key`, the
    key of a request is in the header `X-Request-Key` of its answer and in the text: some servers do so."""

    def __init__(self, script: Script, *, repeats_key: bool = False) -> None:
        self._script = script
        self._repeats_key = repeats_key
        self._runner: web.AppRunner | None = None
        self._base_url = ""
        self.requests: list[dict[str, Any]] = []
        self.cancelled = 0  # requests whose client went away before the answer

    @property
    def base_url(self) -> str:
        if not self._base_url:
            raise RunError("the fake chat server is not running; use it in `async with`")
        return self._base_url

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        answer = self._script(body["messages"])
        reply = FakeReply(answer) if isinstance(answer, str) else answer
        if self._repeats_key:
            key = request.headers["Authorization"]
            headers = {**reply.headers, "X-Request-Key": key}
            reply = replace(reply, content=f"{reply.content}\nThe key was: {key}", headers=headers)
        try:
            await asyncio.sleep(reply.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if reply.status != 200:
            error = {"error": {"message": reply.content, "type": "fake", "code": reply.error_code}}
            return web.json_response(error, status=reply.status, headers=reply.headers)
        return web.json_response(_completion(body, reply, len(self.requests)), headers=reply.headers)


def replies(*answers: FakeReply | str) -> Script:
    """A script that gives `answers` one after the other; more requests than answers are a RunError (status 500)."""
    left = list(answers)

    def script(messages: list[dict[str, Any]]) -> FakeReply | str:
        if not left:
            raise RunError(f"the script has no answer left for a request with {len(messages)} messages")
        return left.pop(0)

    return script


def _completion(body: dict[str, Any], reply: FakeReply, number: int) -> dict[str, Any]:
    prompt_tokens = sum(len((message["content"] or "").split()) for message in body["messages"])
    completion_tokens = len(reply.content.split())
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [_call(call, f"call-{number}-{index}") for index, call in enumerate(reply.calls)]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if reply.calls else reply.finish_reason,
    }
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return {
        "id": f"fake-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


def _call(call: tuple[str, dict[str, Any] | str], call_id: str) -> dict[str, Any]:
    name, arguments = call
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}
