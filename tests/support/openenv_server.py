"""A server of OpenEnv's protocol for tests: a game of guessing a number, and every way in which a server may fail.

Invariants:
- It speaks as the package's own servers do: `/schema`, `/metadata`, and an episode for each WebSocket at `/ws`.
- A fault is a word in `faults`, and comes with the next answer to a step.
"""

import asyncio
import json
from typing import Any, Self

from aiohttp import web

ACTION = {
    "title": "GuessAction",
    "type": "object",
    "required": ["guess"],
    "properties": {"guess": {"type": "integer"}, "metadata": {"type": "object"}},
}
TEXT_ACTION = {"title": "SayAction", "required": ["said"], "properties": {"said": {"type": "string"}}}
TOOL = {"name": "guess", "description": "Guesses.", "input_schema": {"type": "object", "properties": {"n": {}}}}


class OpenEnvServer:
    """Plays episodes whose secret is the seed modulo 10. At most `places` at a time."""

    def __init__(self, *, places: int = 8, action: dict[str, Any] = ACTION, rewards: tuple[Any, ...] = (0.25, 1.0)):
        self.places = places
        self.action = action
        self.tools: list[Any] = [TOOL]
        self.faults: list[str] = []
        self.resets: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.refused_places = 0
        self.open = 0
        self.address = ""
        self._miss, self._hit = rewards
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/ws", self._play)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": self.action, "observation": {}, "state": {}})

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "guessing", "description": "Guess a digit."})

    async def _play(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self.places:
            self.refused_places += 1
            await socket.send_str(_error("CAPACITY_REACHED", "no place"))
            await socket.close()
            return socket
        self.open += 1
        try:
            await self._answer_all(socket)
        finally:
            self.open -= 1
        return socket

    async def _answer_all(self, socket: web.WebSocketResponse) -> None:
        secret = 0
        async for message in socket:
            asked = json.loads(message.data)
            if asked["type"] == "close":
                break
            if asked["type"] == "reset":
                self.resets.append(asked["data"])
                secret = asked["data"]["seed"] % 10
                await socket.send_str(_observation({"said": "Guess."}, None, False))
                continue
            if asked["data"] == {"type": "list_tools"}:
                await socket.send_str(_observation({"tools": self.tools}, None, False))
                continue
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "die":
                request_transport = socket._req.transport if socket._req else None
                assert request_transport is not None
                request_transport.abort()
                return
            if fault == "hang":
                await asyncio.sleep(60)
            await socket.send_str(_fault_text(fault) or self._step(asked["data"], secret))

    def _step(self, action: dict[str, Any], secret: int) -> str:
        self.steps.append(action)
        guess = action.get("guess", action.get("said", (action.get("arguments") or {}).get("n")))
        if "title" in self.action and self.action["title"] == "GuessAction" and not isinstance(guess, int):
            errors = [{"loc": ["guess"], "msg": "Input should be a valid integer"}]
            self.steps.pop()
            return _error("VALIDATION_ERROR", "Invalid message", errors)
        hit = str(guess) == str(secret)
        return _observation({"said": "yes" if hit else "no"}, self._hit if hit else self._miss, hit)


def _observation(observation: dict[str, Any], reward: Any, done: bool) -> str:
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


def _error(code: str, message: str, errors: Any = None) -> str:
    data = {"code": code, "message": message}
    return json.dumps({"type": "error", "data": data if errors is None else {**data, "errors": errors}})


def _fault_text(fault: str) -> str:
    return {
        "raise": _error("EXECUTION_ERROR", "division by zero"),
        "no json": "<html>",
        "no object": "[]",
        "no observation": json.dumps({"type": "observation", "data": {"reward": 1.0, "done": True}}),
        "done in words": json.dumps(
            {"type": "observation", "data": {"observation": {"said": "no"}, "reward": 1.0, "done": "false"}}
        ),
        "another type": json.dumps({"type": "state", "data": {}}),
    }.get(fault, "")
