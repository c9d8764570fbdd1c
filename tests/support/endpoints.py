"""Endpoints for tests: engines whose pauses take no time, and a server that answers any path as a function says.

Invariants:
- The clock of an engine goes on only while the engine pauses. So a test knows each pause to the second.
"""

import asyncio
import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.endpoint.formats import FORMATS
from swe_rl.engine.endpoint.question import Question
from swe_rl.engine.endpoint.spending import Prices, Spending
from swe_rl.engine.engine import SamplingParams

KEY = "sk-secret-0123456789"
QUESTION = Question([{"role": "user", "content": "Hi"}], SamplingParams(32))


class ManualClock:
    """Goes on only while somebody sleeps by it. `pauses` has all sleeps, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)
        self.now_s += seconds


def make_endpoint(folder: Path, url: str, *, patience_s: float = 7200.0, **keys: Any) -> EndpointEngine:
    """Returns an endpoint that is not greeted. `said`, `pauses` and `clock` are its own, for the test to look at."""
    said: list[str] = []
    clock = ManualClock()
    config = EngineConfig(**({"url": url, "model": "m", "key": KEY} | keys))
    spending = Spending(
        folder / "calls.jsonl", Prices.of(config), budget=config.budget, budget_tokens=config.budget_tokens
    )
    engine: Any = EndpointEngine(
        config, spending, said.append, patience_s=patience_s, rng=random.Random(0), sleep=clock.sleep, clock=clock
    )
    engine.said = said
    engine.pauses = clock.pauses
    engine.test_clock = clock
    return engine  # type: ignore[no-any-return]


async def speak(engine: EndpointEngine, dialect: str = "chat") -> None:
    """Speaks a dialect without a greeting."""
    await engine._speak(FORMATS[dialect])  # type: ignore[index]


@dataclass
class Asked:
    """A request of the server."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Said:
    """An answer: a body of JSON, or a text as it is."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class AnyServer:
    """Answers with what `script` returns for a request, which may be awaited."""

    def __init__(self, script: Callable[[Asked], Any]) -> None:
        self._script = script
        self._runner: web.AppRunner | None = None
        self.base_url = ""
        self.requests: list[Asked] = []

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        asked = Asked(request.path, dict(request.headers), await request.json())
        self.requests.append(asked)
        said = self._script(asked)
        if inspect.isawaitable(said):
            said = await said
        if not isinstance(said, Said):
            said = Said(said)
        body = said.body if isinstance(said.body, str) else json.dumps(said.body)
        return web.Response(text=body, status=said.status, headers=said.headers, content_type="application/json")


def chat(content: str | None = "yes", prompt_tokens: int = 3, sampled_tokens: int = 1, **choice: Any) -> dict[str, Any]:
    """A reply of Chat Completions."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": sampled_tokens}
    whole = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"} | choice
    return {"choices": [whole], "usage": usage}


def refusal(message: str, *, status: int = 400, headers: dict[str, str] | None = None, **fields: Any) -> Said:
    return Said({"error": {"message": message, **fields}}, status, headers or {})
