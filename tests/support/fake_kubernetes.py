"""An API server of Kubernetes for tests: pods, exec over a websocket, and commands that run for real.

Invariants:
- A pod is a machine of `fake_machine`; `exec` enters it as a kubelet enters a container. The object of an ended pod
  stays.
- Whatever is not in `faults` is answered as the official client reads it. `requests` has all methods and paths.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.fake_machine import FakeMachine, FakeService

TOKEN = "token-of-the-cluster"


class FakePod(FakeMachine):
    def __init__(self, described: dict[str, Any], first: list[str]) -> None:
        super().__init__(first)
        self.described = described
        self.looks = 0
        self.reason = ""  # why its container ended
        self.evicted = ""  # why its node ended it


class FakeKubernetes(FakeService):
    """`with FakeKubernetes(folder) as cluster`: `cluster.kubeconfig` is the file for the client."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.pods: dict[str, FakePod] = {}
        self.policies: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.authorized: set[str | None] = set()
        self.sent_bytes = 0  # by commands
        self.faults: dict[str, Any] = {}
        self.busy: dict[str, int] = {}  # So many requests get the status 429 first.

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._note])
        pods = "/api/v1/namespaces/{namespace}/pods"
        app.router.add_post("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", self._add_policy)
        app.router.add_post(pods, self._create)
        app.router.add_get(pods, self._list)
        app.router.add_get(f"{pods}/{{name}}", self._read)
        app.router.add_delete(f"{pods}/{{name}}", self._delete)
        app.router.add_get(f"{pods}/{{name}}/exec", self._exec)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "here", "user": {"token": TOKEN}}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    async def _end(self) -> None:
        for pod in self.pods.values():
            pod.end()
        await self._runner.cleanup()

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.authorized.add(request.headers.get("Authorization"))
        asked = f"{request.method} {request.path.rpartition('/')[2].partition('-')[0]}"
        if self.busy.get(asked, 0) > 0:
            self.busy[asked] -= 1
            return _status(429, "it is busy")
        status = self.faults.get(asked)
        if status:
            return _status(status, "it does not want to")
        return await handler(request)

    async def _add_policy(self, request: web.Request) -> web.Response:
        if self.policies:
            return _status(409, "it is there")
        self.policies.append(await request.json())
        return web.json_response(self.policies[0], status=201)

    async def _create(self, request: web.Request) -> web.Response:
        described = await request.json()
        name = described["metadata"]["name"]
        (container,) = described["spec"]["containers"]
        self.pods[name] = FakePod(described, container["command"])
        return web.json_response(described, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        label = request.query["labelSelector"]
        items = [_shown(pod) for pod in self.pods.values() if label in pod.described["metadata"]["labels"]]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def _read(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return _status(404, "there is no such pod")
        pod.looks += 1
        waiting = self.faults.get("waiting")
        if isinstance(waiting, list):
            waiting = waiting.pop(0) if waiting else None
        return web.json_response(_shown(pod, waiting))

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self.pods.pop(request.match_info["name"], None)
        if pod is None:
            return _status(404, "there is no such pod")
        await asyncio.to_thread(pod.end)
        return web.json_response(_shown(pod))

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod = self.pods.get(request.match_info["name"])
        if pod is None or pod.process.poll() is not None:
            return _status(404, "there is no such pod")
        if self.faults.get("silent"):
            await asyncio.sleep(0.6)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        if self.faults.get("no process"):
            refused = {"status": "Failure", "message": "starting container process: Resource temporarily unavailable"}
            await socket.send_bytes(b"\3" + json.dumps(refused).encode())
            await socket.close()
            return socket
        process = await pod.enter(request.query.getall("command"))
        assert process.stdin and process.stdout and process.stderr
        typing = asyncio.ensure_future(_type(socket, process.stdin))
        with contextlib.suppress(ConnectionError):
            sent = await asyncio.gather(_send(socket, 1, process.stdout), _send(socket, 2, process.stderr))
            self.sent_bytes += sum(sent)
            await socket.send_bytes(b"\3" + json.dumps(_ended(await process.wait())).encode())
            await socket.close()
        typing.cancel()
        return socket


async def _type(socket: web.WebSocketResponse, to: asyncio.StreamWriter) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
            with contextlib.suppress(ConnectionError):
                to.write(message.data[1:])
                await to.drain()


async def _send(socket: web.WebSocketResponse, channel: int, of: asyncio.StreamReader) -> int:
    num_bytes = 0
    while data := await of.read(32_000):
        await socket.send_bytes(bytes([channel]) + data)
        num_bytes += len(data)
    return num_bytes


def _ended(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}]
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


def _shown(pod: FakePod, waiting: str | None = None) -> dict[str, Any]:
    code = pod.process.poll()
    state: dict[str, Any] = {"running": {}}
    phase = "Running"
    if code is not None:
        phase = "Failed" if code else "Succeeded"
        state = {"terminated": {"exitCode": code, "reason": pod.reason or "Error"}}
    elif waiting or pod.looks < 2:
        phase = "Pending"
        state = {"waiting": {"reason": waiting or "ContainerCreating", "message": "of its image"}}
    container = {"name": "sandbox", "image": "a", "imageID": "", "ready": True, "restartCount": 0, "state": state}
    status = {"phase": phase, "containerStatuses": [container]}
    if pod.evicted:
        status |= {"phase": "Failed", "reason": "Evicted", "message": pod.evicted}
    return {**pod.described, "status": status}


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)
