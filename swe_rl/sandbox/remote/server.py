"""This module is the sandbox server, which offers sandboxes of this machine over HTTP, for runs elsewhere.

Invariants:
- Every call but `GET /health` needs the key, where there is one; it is compared in constant time and never printed.
  `GET /health?challenge=` proves that this server has it.
- At most `slots` sandboxes are there. A start beyond that is answered with 429, and nothing is made.
- A run that is not heard of for `lease_s` loses its sandboxes; a client that hangs up ends its command.
- When the server stops, so do all sandboxes.
- A sandbox belongs to one run. A run that neither asked for anything nor renewed for `lease_s` loses all of its own.
- A request id stands for one sandbox: a start that is asked for twice, because its answer was lost, is one start.
"""

import asyncio
import contextlib
import hmac
import json
import math
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from swe_rl.errors import SweRlError, UserError
from swe_rl.host.addresses import is_loopback
from swe_rl.sandbox.archive import Workspaces
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.leases import Leases
from swe_rl.sandbox.sandbox import (
    Door,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxProvider,
    Snapshot,
    Toolchain,
    Workspace,
)

_MAX_BODY_BYTES = 8 << 30  # The archive of a workspace may be so large.
_CHUNK_BYTES = 1 << 20
_LONGEST_CHALLENGE = 64  # Anybody may send a challenge, and no more than this is answered.
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _Entry:
    sandbox: Sandbox
    owner: str
    since_s: float
    commands: int = 0
    running: dict[str, asyncio.Task[ExecResult]] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)  # A client last said so of each running command.


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """These are the options of a server."""

    slots: int
    lease_s: float
    key: str | None  # It may be None only on a loopback address.
    host: str = "127.0.0.1"
    port: int = 0  # 0 stands for any free port.
    name: str = ""  # This name of the server's start is part of its proof.


class RuntimeServer:
    """This serves `provider`, and closes it at the end. Raises UserError for an open address without a key."""

    def __init__(self, provider: SandboxProvider, folder: Path, options: ServerOptions) -> None:
        if options.key is None and not is_loopback(options.host):
            raise UserError(f"a sandbox server on {options.host} needs a key: whoever reaches it can run commands")
        self._provider = provider
        self._options = options
        self._workspaces = Workspaces(folder / "workspaces")
        self._leases: Leases[_Entry] = Leases(options.lease_s)
        self._snapshots: Leases[Snapshot] = Leases(options.lease_s)
        self._starting: dict[str, asyncio.Task[_Entry]] = {}
        self._runner: web.AppRunner | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()

    async def start(self) -> str:
        """Begins to listen, and returns the address. Raises SandboxError when the port is taken."""
        self._runner = web.AppRunner(self.application(), handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._options.host, self._options.port)
        try:
            await site.start()
        except OSError as error:
            raise SandboxError(f"no sandbox server on {self._options.host}:{self._options.port}: {error}") from error
        self._watching = asyncio.ensure_future(self._watch())
        port = self._runner.addresses[0][1]
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"http://{host}:{port}"

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), *self._closing, return_exceptions=True)
        await self._provider.close()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded], client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/sandboxes", self._list)
        app.router.add_post("/sandboxes", self._create)
        app.router.add_post("/sandboxes/{sandbox_id}/exec", self._exec)
        app.router.add_delete("/sandboxes/{sandbox_id}/commands/{command_id}", self._stop_command)
        app.router.add_put("/sandboxes/{sandbox_id}/commands/{command_id}/waited", self._note_waited)
        app.router.add_put("/sandboxes/{sandbox_id}/file", self._write)
        app.router.add_get("/sandboxes/{sandbox_id}/file", self._read)
        app.router.add_post("/sandboxes/{sandbox_id}/snapshot", self._snapshot)
        app.router.add_post("/sandboxes/{sandbox_id}/reset", self._reset)
        app.router.add_delete("/snapshots/{snapshot_id}", self._drop)
        app.router.add_get("/sandboxes/{sandbox_id}", self._status)
        app.router.add_delete("/sandboxes/{sandbox_id}", self._stop)
        app.router.add_get("/workspaces/{digest}", self._has_workspace)
        app.router.add_put("/workspaces/{digest}", self._add_workspace)
        app.router.add_post("/renew", self._renew)
        app.router.add_delete("/run", self._end_run)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/health" and not self._may(request):
            return _refuse_request(
                wire.WireFailure("user", "the sandbox server wants another key (sandbox.runtime_key_env)"), 401
            )
        self._snapshots.renew(_run_name(request), time.monotonic())
        try:
            return await handler(request)
        except SweRlError as error:
            return _refuse_request(wire.failure_of(error), wire.ERROR_STATUS)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            return _refuse_request(
                wire.WireFailure("sandbox", f"the server does not understand the request: {error!r}"), 400
            )

    def _may(self, request: web.Request) -> bool:
        key = self._options.key
        given = request.headers.get(wire.KEY_HEADER, "")
        # Bytes of a header that are no UTF-8 come as surrogates.
        return key is None or hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())

    async def _health(self, request: web.Request) -> web.Response:
        answer: dict[str, Any] = {"status": "ok", "slots": self._options.slots, "used": self.used}
        challenge = request.query.get("challenge", "")[:_LONGEST_CHALLENGE]
        if challenge and self._options.key is not None:
            answer["proof"] = wire.proof_of(self._options.key, self._options.name, challenge)
        return web.json_response(answer)

    @property
    def used(self) -> int:
        """Returns how many slots are taken."""
        return len(self._leases.everyone()) + len(self._starting)

    @property
    def silence_s(self) -> float | None:
        """Returns the seconds since any run was last heard of, or None while there is none."""
        heard_s = self._leases.heard_s()
        return None if heard_s is None else time.monotonic() - heard_s

    async def _list(self, request: web.Request) -> web.Response:
        rows = [self._row(run, name, entry) for run, name, entry in self._leases.everyone()]
        return web.json_response({"sandboxes": rows})

    async def _status(self, request: web.Request) -> web.Response:
        run, name, entry = self._entry(request)
        return web.json_response(self._row(run, name, entry))

    def _row(self, run: str, name: str, entry: _Entry) -> dict[str, Any]:
        return {
            "sandbox_id": name,
            "run": run,
            "owner": entry.owner,
            "age_s": round(time.monotonic() - entry.since_s, 3),
            "commands": entry.commands,
        }

    async def _create(self, request: web.Request) -> web.Response:
        run = _run_name(request)
        order = await request.json()
        name = str(order["request_id"])
        self._leases.renew(run, time.monotonic())
        entry = self._leases.get(run, name, time.monotonic())
        if entry is None:
            if name not in self._starting:
                if self.used >= self._options.slots:
                    slots = self._options.slots
                    full = wire.WireFailure("sandbox", f"all {slots} places of the sandbox server are taken")
                    return _refuse_request(full, wire.FULL_STATUS)
                self._starting[name] = asyncio.ensure_future(self._make(run, name, order))
                self._starting[name].add_done_callback(lambda task: self._starting.pop(name, None))
            # A client that hangs up and asks again finds the start going on.
            entry = await asyncio.shield(self._starting[name])
        return web.json_response({"workdir": entry.sandbox.workdir, "door_url": entry.sandbox.door_url}, status=201)

    async def _make(self, run: str, name: str, order: dict[str, Any]) -> _Entry:
        asked = order.get("door")
        door = Door(str(asked["host"]), int(asked["port"]), str(asked["path"])) if asked else None
        owner = str(order["owner"])
        if order.get("snapshot"):
            sandbox = await self._provider.fork(self._own_snapshot(run, order["snapshot"]), owner=owner, door=door)
        else:
            sandbox = await self._provider.create(self._workspace(order), owner=owner, door=door)
        entry = _Entry(sandbox, owner, time.monotonic())
        self._leases.hold(run, name, entry, time.monotonic())
        return entry

    def _workspace(self, order: dict[str, Any]) -> Workspace:
        path = self._sent(order["workspace"]) if order.get("workspace") else None
        places = wire.places_of(order.get("places", []))
        toolchain = None
        if order.get("toolchain"):
            programs = wire.ToolchainOrder.read(order["toolchain"])
            toolchain = Toolchain(self._sent(programs.workspace), programs.seen_as, programs.variables)
        return Workspace(path, order.get("image"), str(order["workdir"]), toolchain, places)

    def _own_snapshot(self, run: str, name: Any) -> Snapshot:
        """Returns a snapshot of the run. Raises SandboxError where the run has none of this name."""
        snapshot = self._snapshots.get(run, str(name), time.monotonic())
        if snapshot is None:
            raise SandboxError(f"{str(name)[:80]} is not on this server: it was dropped, or its lease ran out")
        return snapshot

    async def _snapshot(self, request: web.Request) -> web.Response:
        run, _, entry = self._entry(request)
        snapshot = await entry.sandbox.snapshot()
        self._snapshots.hold(run, snapshot.snapshot_id, snapshot, time.monotonic())
        return web.json_response({"snapshot_id": snapshot.snapshot_id})

    async def _reset(self, request: web.Request) -> web.Response:
        run, _, entry = self._entry(request)
        await entry.sandbox.reset(self._own_snapshot(run, (await request.json())["snapshot_id"]))
        return web.json_response({})

    async def _drop(self, request: web.Request) -> web.Response:
        snapshot = self._snapshots.drop(_run_name(request), request.match_info["snapshot_id"])
        if snapshot is not None:
            await self._provider.drop(snapshot)
        return web.json_response({})

    def _sent(self, digest: str) -> Path:
        """Returns the folder that a client sent. Raises FolderGoneError where there is none."""
        path = self._workspaces.path(digest)
        if path is None:
            raise wire.FolderGoneError(f"workspace {digest} was not sent to this server")
        return path

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        _, _, entry = self._entry(request)
        order = wire.ExecOrder.read(await request.json())  # It may raise, so it comes before any answer.
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        entry.commands += 1
        running = asyncio.ensure_future(
            entry.sandbox.exec(
                order.command,
                timeout_s=order.timeout_s,
                env=order.env,
                max_output_bytes=order.max_output_bytes,
                waited=lambda: entry.waited_s.get(order.command_id, 0.0),
            )
        )
        entry.running[order.command_id] = running
        try:
            while not (await asyncio.wait({running}, timeout=wire.SIGN_OF_LIFE_S))[0]:
                await response.write(b" ")
        finally:
            running.cancel()
            await asyncio.wait({running})
            del entry.running[order.command_id]
            entry.waited_s.pop(order.command_id, None)
        try:
            answer: dict[str, Any] = wire.result_to_json(running.result())
        except asyncio.CancelledError:
            answer = wire.WireFailure("sandbox", "the command was stopped").as_json()
        except SweRlError as error:
            answer = wire.failure_of(error).as_json()
        await response.write(json.dumps(answer).encode())
        await response.write_eof()
        return response

    async def _stop_command(self, request: web.Request) -> web.Response:
        _, _, entry = self._entry(request)
        running = entry.running.get(request.match_info["command_id"])
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        return web.json_response({})

    async def _note_waited(self, request: web.Request) -> web.Response:
        """Notes for how long a running command has waited for its client's side so far."""
        _, _, entry = self._entry(request)
        command_id = request.match_info["command_id"]
        waited_s = float((await request.json())["waited_s"])
        if not math.isfinite(waited_s):
            raise ValueError(f"waited_s is {waited_s}")
        if command_id in entry.running:
            entry.waited_s[command_id] = waited_s
        return web.json_response({})

    async def _write(self, request: web.Request) -> web.Response:
        _, _, entry = self._entry(request)
        await entry.sandbox.write_file(request.query["path"], await request.read())
        return web.json_response({})

    async def _read(self, request: web.Request) -> web.Response:
        _, _, entry = self._entry(request)
        return web.Response(body=await entry.sandbox.read_file(request.query["path"]))

    async def _stop(self, request: web.Request) -> web.Response:
        name = request.match_info["sandbox_id"]
        if (starting := self._starting.get(name)) is not None:
            starting.cancel()
            await asyncio.wait({starting})
        entry = self._leases.drop(_run_name(request), name)
        if entry is not None:
            await asyncio.shield(self._close_entry(entry))
        return web.json_response({})

    async def _has_workspace(self, request: web.Request) -> web.Response:
        there = self._workspaces.path(request.match_info["digest"]) is not None
        return web.json_response({}, status=200 if there else wire.GONE_STATUS)

    async def _add_workspace(self, request: web.Request) -> web.Response:
        with tempfile.NamedTemporaryFile() as archive:  # noqa: ASYNC230 - an open of a new file
            async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
                archive.write(chunk)
            archive.flush()
            await asyncio.to_thread(self._workspaces.add, request.match_info["digest"], Path(archive.name))
        return web.json_response({})

    async def _renew(self, request: web.Request) -> web.Response:
        return web.json_response({"sandboxes": self._leases.renew(_run_name(request), time.monotonic())})

    async def _end_run(self, request: web.Request) -> web.Response:
        ended = self._leases.end(_run_name(request))
        await asyncio.gather(*map(self._close_entry, ended))
        await self._drop_all(self._snapshots.end(_run_name(request)))
        return web.json_response({"closed": len(ended)})

    def _entry(self, request: web.Request) -> tuple[str, str, _Entry]:
        run = _run_name(request)
        name = request.match_info["sandbox_id"]
        entry = self._leases.get(run, name, time.monotonic())
        if entry is None:
            raise SandboxError(
                f"sandbox {name} is not on this server: it was stopped, its lease ran out, or the "
                "server was started anew"
            )
        return run, name, entry

    def _close_entry(self, entry: _Entry) -> "asyncio.Future[None]":
        closing: asyncio.Future[None] = asyncio.ensure_future(entry.sandbox.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._options.lease_s / 4)
            for entry in self._leases.lapse(time.monotonic()):
                self._close_entry(entry)
            await self._drop_all(self._snapshots.lapse(time.monotonic()))

    async def _drop_all(self, snapshots: list[Snapshot]) -> None:
        for snapshot in snapshots:
            # What cannot be removed is removed with the provider.
            with contextlib.suppress(SandboxError):
                await self._provider.drop(snapshot)


@contextlib.asynccontextmanager
async def run_server(provider: SandboxProvider, folder: Path, options: ServerOptions) -> AsyncIterator[str]:
    """Runs a server for the time of the block, and yields its address. Raises SandboxError when the port is taken."""
    server = RuntimeServer(provider, folder, options)
    try:
        yield await server.start()
    finally:
        await server.close()


def _run_name(request: web.Request) -> str:
    return request.headers.get(wire.RUN_HEADER, "")


def _refuse_request(failure: wire.WireFailure, status: int) -> web.Response:
    return web.json_response(failure.as_json(), status=status)
