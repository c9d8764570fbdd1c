"""A resource server of NeMo-Gym's protocol for tests: a counter, and every way in which a server may fail.

Invariants:
- It speaks as the package's own servers do: `/openapi.json`, a session by a cookie, tools as paths, and `/verify`.
- A fault is a word in `faults` by the path that has it: `{"verify": "raise"}`.
"""

import asyncio
import json
import secrets
from typing import Any, Self

from aiohttp import web

COOKIE = "Counter___counter"
TOOLS = [
    {"type": "function", "name": name, "description": "", "strict": True, "parameters": {"type": "object"}}
    for name in ("add", "look")
]


def task(start: int, goal: int, **params: Any) -> dict[str, Any]:
    """A row: the counter begins at `start`, and the reward is 1 where it is at `goal` in the end."""
    asked = {"input": [{"role": "user", "content": f"Bring {start} to {goal}."}], "tools": TOOLS, **params}
    return {"responses_create_params": asked, "start": start, "goal": goal}


class NemoGymServer:
    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.reward: Any = None  # in the place of the verdict
        self.counters: dict[str, int] = {}
        self.seeded: list[dict[str, Any]] = []
        self.verified: list[dict[str, Any]] = []
        self.paths = ["/seed_session", "/verify", "/aggregate_metrics", "/add", "/look"]
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/openapi.json", self._schema)
        app.router.add_post("/{path}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"openapi": "3.1.0", "paths": {path: {"post": {}} for path in self.paths}})

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        body = await request.json()
        fault = self.faults.get(path, "")
        if fault == "die":
            assert request.transport is not None
            request.transport.abort()
        if fault == "hang":
            await asyncio.sleep(60)
        if fault:
            return _faulty(fault)
        if path == "seed_session":
            return self._seed(body)
        if "forget" in body:
            self.counters.clear()
        session = request.cookies.get(COOKIE, "")
        if session not in self.counters:
            return web.json_response({"detail": "Session not initialized."}, status=400)
        if path == "verify":
            # Servers run what a response calls once more, or compare it.
            calls = [item for item in body["response"]["output"] if item["type"] == "function_call"]
            if not all(_is_call(call) for call in calls):
                return _faulty("raise")
            self.verified.append(body)
            reward = float(self.counters[session] == body["goal"]) if self.reward is None else self.reward
            return web.Response(text=json.dumps({**body, "reward": reward}), content_type="application/json")
        if path == "add" and not isinstance(body.get("by"), int):
            detail = [{"loc": ["body", "by"], "msg": "Input should be a valid integer"}]
            return web.json_response({"detail": detail}, status=422)
        self.counters[session] += body.get("by", 0)
        return web.json_response({"count": self.counters[session]})

    def _seed(self, row: dict[str, Any]) -> web.Response:
        # The characters of a signed cookie of Starlette's.
        session = f"eyJ={secrets.token_hex(8)}.Zx-_="
        self.seeded.append(row)
        self.counters[session] = row["start"]
        answer = web.json_response({})
        answer.headers["Set-Cookie"] = f"{COOKIE}={session}; path=/; httponly; samesite=lax"
        return answer


def _is_call(call: dict[str, Any]) -> bool:
    try:
        return call["name"] in ("add", "look") and isinstance(json.loads(call["arguments"]), dict)
    except ValueError:
        return False


def _faulty(fault: str) -> web.Response:
    if fault == "raise":
        return web.json_response("ValueError('no')", status=500)
    if fault == "detail":
        return web.json_response({"detail": "division by zero"}, status=500)
    if fault == "elsewhere":
        return web.Response(status=307, headers={"Location": "/look"})
    if fault == "over MCP":
        return web.json_response({"mcp": {"url_path": "/mcp"}})
    return web.Response(text={"no json": "<html>", "no object": "[]", "no reward": "{}"}[fault])
