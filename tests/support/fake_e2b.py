"""E2B for tests: its API of sandboxes, and that of `envd`, the daemon in each; commands run for real.

Invariants:
- One address speaks both. As with E2B's own sandbox address, a header says which sandbox is meant.
- `envd` speaks Connect: JSON messages, each behind five bytes; the last one has the flag 2.
- A sandbox ends at its time, which its client moves. An ended one is not there any more.
- What a request is answered instead is in `faults` (always) and `busy` (so often), by its method and path.
"""

import asyncio
import base64
import contextlib
import json
import struct
import time
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from tests.support.fake_machine import FakeMachine, FakeService

KEY = "e2b_key-that-nobody-may-read"
_TOKEN = "token-of-one-sandbox"


@dataclass
class FakeSandbox:
    machine: FakeMachine
    described: dict[str, Any]
    ends_at_s: float
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    has_envd: bool = True  # a command that is root's can end it


class FakeE2B(FakeService):
    """`with FakeE2B() as service`: `service.url` is both addresses."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.requests: list[str] = []
        self.faults: dict[str, int] = {}
        self.busy: dict[str, int] = {}
        self.busy_status = 429
        self.templates: set[str] | None = None  # None: any
        self.profile = ""  # what a login shell prints

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._note], client_max_size=1 << 30)
        for create in ("/sandboxes", "/v2/sandboxes"):
            app.router.add_post(create, self._create)
        app.router.add_get("/v2/sandboxes", self._list)
        app.router.add_delete("/sandboxes/{id}", self._kill)
        app.router.add_post("/sandboxes/{id}/timeout", self._set_timeout)
        app.router.add_get("/health", self._health)
        app.router.add_post("/files", self._write)
        app.router.add_post("/process.Process/Start", self._start)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._ending = asyncio.ensure_future(self._end_late())

    async def _end(self) -> None:
        self._ending.cancel()
        for sandbox in self.sandboxes.values():
            sandbox.machine.end()
        await self._runner.cleanup()

    async def _end_late(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for name, sandbox in list(self.sandboxes.items()):
                if sandbox.ends_at_s < time.monotonic():
                    self.end(name)

    def end(self, name: str) -> None:
        """Ends a sandbox, as the service does at its time."""
        self.sandboxes.pop(name).machine.end()

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        asked = f"{request.method} {request.path.removeprefix('/v2')}".split("/swe")[0]
        self.requests.append(asked)
        if self.busy.get(asked, 0) > 0:
            self.busy[asked] -= 1
            return _refused(self.busy_status, "it is busy")
        if asked in self.faults:
            return _refused(self.faults[asked], f"it does not want to, {KEY}")
        if request.path in ("/files", "/process.Process/Start"):
            if request.headers.get("X-Access-Token") != _TOKEN:
                return _refused(401, "no token")
        elif request.path != "/health" and request.headers.get("X-API-KEY") != KEY:
            return _refused(401, f"{request.headers.get('X-API-KEY')} is no key")
        return await handler(request)

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if self.templates is not None and asked["templateID"] not in self.templates:
            return _refused(404, f"template '{asked['templateID']}' not found")
        name = uuid.uuid4().hex[:20]
        machine = FakeMachine(network=asked.get("allow_internet_access", True))
        self.sandboxes[name] = FakeSandbox(machine, asked, time.monotonic() + asked["timeout"])
        of = {"templateID": asked["templateID"], "sandboxID": name, "clientID": "c", "envdVersion": "0.6.9"}
        return web.json_response({**of, "envdAccessToken": _TOKEN}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        """A page has one sandbox, so that a client that reads one page alone is found."""
        wanted = {unquote(key): unquote(value) for key, value in parse_qsl(request.query.get("metadata", ""))}
        named = sorted(self.sandboxes.items())
        fitting = [(name, each) for name, each in named if wanted.items() <= each.described["metadata"].items()]
        page = int(request.query.get("nextToken", "0"))
        headers = {"X-Next-Token": str(page + 1)} if len(fitting) > page + 1 else {}
        return web.json_response([_listed(*each) for each in fitting[page : page + 1]], headers=headers)

    async def _kill(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.sandboxes:
            return _refused(404, "there is no such sandbox")
        self.end(request.match_info["id"])
        return web.Response(status=204)

    async def _set_timeout(self, request: web.Request) -> web.Response:
        sandbox = self.sandboxes.get(request.match_info["id"])
        if sandbox is None:
            return _refused(404, "there is no such sandbox")
        sandbox.ends_at_s = time.monotonic() + (await request.json())["timeout"]
        return web.Response(status=204)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=204 if self._meant(request) else 502)

    def _meant(self, request: web.Request) -> FakeSandbox | None:
        sandbox = self.sandboxes.get(request.headers.get("E2b-Sandbox-Id", ""))
        return sandbox if sandbox is not None and sandbox.has_envd else None

    async def _write(self, request: web.Request) -> web.Response:
        sandbox = self._meant(request)
        if sandbox is None:
            return _refused(502, "the sandbox was not found")
        part = await (await request.multipart()).next()
        content = await part.read(decode=True)
        path = request.query["path"]
        process = await sandbox.machine.enter(["bash", "-c", 'cat > "$1"', "envd", path])
        await process.communicate(content)
        return web.json_response([{"name": path.rpartition("/")[2], "type": "file", "path": path}])

    async def _start(self, request: web.Request) -> web.StreamResponse:
        sandbox = self._meant(request)
        if sandbox is None:
            return _refused(502, "the sandbox was not found")
        asked = json.loads((await request.read())[5:])["process"]
        argv = [asked["cmd"], *asked["args"]]
        if self.profile:
            argv = ["bash", "-c", f'{self.profile}; exec "$@"', "profile", *argv]
        process = await sandbox.machine.enter(argv, stdin=asyncio.subprocess.DEVNULL, cwd=asked.get("cwd", "/"))
        answer = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            await _say(answer, {"start": {"pid": process.pid}})
            await asyncio.gather(*(_pass(answer, name, getattr(process, name)) for name in ("stdout", "stderr")))
            status = await process.wait()
            if sandbox.machine.has_ended:
                # A virtual machine that is gone says nothing any more.
                request.transport.close()  # type: ignore[union-attr]
                return answer
            # Go, in which envd is written, has the status -1 for a process that a signal ended.
            await _say(answer, {"end": {"exitCode": status if status < 128 else -1, "exited": True}})
            await answer.write(struct.pack(">BI", 2, 2) + b"{}")
            await answer.write_eof()
        return answer


async def _say(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    message = json.dumps({"event": event}).encode()
    await answer.write(struct.pack(">BI", 0, len(message)) + message)


async def _pass(answer: web.StreamResponse, name: str, of: asyncio.StreamReader) -> None:
    while data := await of.read(32_000):
        await _say(answer, {"data": {name: base64.b64encode(data).decode()}})


def _listed(name: str, sandbox: FakeSandbox) -> dict[str, Any]:
    times = {"startedAt": "2026-11-30T00:00:00Z", "endAt": "2026-11-30T01:00:00Z"}
    sizes = {"cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024, "state": "running", "envdVersion": "0.6.9"}
    template = sandbox.described["templateID"]
    metadata = sandbox.described["metadata"]
    return {"templateID": template, "sandboxID": name, "clientID": "c", "metadata": metadata, **times, **sizes}


def _refused(code: int, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=code)
