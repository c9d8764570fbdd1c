"""The client of OpenHands-style remote runtimes, against a small server that runs the actions here."""

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_rl.config.choices import RuntimeProtocol, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.remote.openhands import OpenHandsProvider
from swe_rl.sandbox.sandbox import Door, SandboxError, Workspace

CONFIG = SandboxConfig(
    kind=SandboxKind.remote,
    runtime_protocol=RuntimeProtocol.openhands,
    runtime_key_env="TEST_RUNTIME_KEY",
    start_timeout_s=2.0,
)


@dataclass
class FakeRuntimes:
    """Both halves on one address: /start and /stop want the key, the action server its own."""

    root: Path
    url: str = ""
    orders: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    busy: int = 0
    alive_after: int = 0
    prompt: str = "$ "

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/start", self.start)
        app.router.add_post("/stop", self.stop)
        app.router.add_get("/r/alive", self.alive)
        app.router.add_post("/r/execute_action", self.act)
        app.router.add_post("/r/upload_file", self.upload)
        app.router.add_get("/r/download_files", self.download)
        return app

    async def start(self, request: web.Request) -> web.Response:
        if request.headers.get("X-API-Key") != "secret-key":
            return web.Response(status=403, text="no")
        if self.busy:
            self.busy -= 1
            return web.Response(status=429)
        self.orders.append(await request.json())
        made = {"runtime_id": f"id{len(self.orders)}", "url": f"{self.url}/r", "session_api_key": "inner"}
        return web.json_response(made | {"work_hosts": {}})

    async def stop(self, request: web.Request) -> web.Response:
        self.stopped.append((await request.json())["runtime_id"])
        return web.json_response({})

    async def alive(self, request: web.Request) -> web.Response:
        self.alive_after -= 1
        return web.json_response({"status": "ok"}, status=503 if self.alive_after >= 0 else 200)

    async def act(self, request: web.Request) -> web.Response:
        assert request.headers["X-Session-API-Key"] == "inner"
        action = (await request.json())["action"]
        assert action["action"] == "run"
        pipe = asyncio.subprocess.PIPE
        shell = await asyncio.create_subprocess_exec("bash", "-c", action["args"]["command"], stdout=pipe, cwd="/")
        said = (await shell.communicate())[0].decode(errors="replace")
        metadata = {"exit_code": shell.returncode}
        content = f"{action['args']['command']}\r\n{said}{self.prompt}"
        return web.json_response({"observation": "run", "content": content, "extras": {"metadata": metadata}})

    async def upload(self, request: web.Request) -> web.Response:
        part = await (await request.multipart()).next()
        _write(request.query["destination"], part.filename, bytes(await part.read()))
        return web.json_response({})

    async def download(self, request: web.Request) -> web.Response:
        return web.Response(body=_zipped(request.query["path"]))


def _write(folder: str, name: str, content: bytes) -> None:
    Path(folder, name).write_bytes(content)


def _zipped(folder: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path in Path(folder).iterdir():
            archive.write(path, path.name)
    return made.getvalue()


@pytest.fixture
async def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeRuntimes]:
    monkeypatch.setenv("TEST_RUNTIME_KEY", "secret-key")
    (tmp_path / "testbed").mkdir()
    fake = FakeRuntimes(tmp_path)
    runner = web.AppRunner(fake.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def provider(runtimes: FakeRuntimes) -> AsyncIterator[OpenHandsProvider]:
    made = OpenHandsProvider(replace(CONFIG, runtime_url=runtimes.url), poll_s=0.01)
    yield made
    await made.close()


def _workspace(runtimes: FakeRuntimes) -> Workspace:
    return Workspace(image="a/b:1", workdir=str(runtimes.root / "testbed"))


async def test_a_runtime_is_started_used_and_stopped(provider: OpenHandsProvider, runtimes: FakeRuntimes):
    runtimes.busy, runtimes.alive_after = 2, 2
    sandbox = await provider.create(_workspace(runtimes), owner="django/1")
    (order,) = runtimes.orders
    assert order["image"] == "a/b:1" and order["session_id"].startswith("django-1-")
    result = await sandbox.exec('echo "$A"; pwd; echo err >&2; exit 3', timeout_s=5, env={"A": "b 'c"})
    assert (result.exit_code, result.output) == (3, f"b 'c\n{sandbox.workdir}\nerr\n")
    await asyncio.gather(sandbox.close(), sandbox.close())
    assert runtimes.stopped == ["id1"]
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true", timeout_s=5)


async def test_timeouts_and_long_output(provider: OpenHandsProvider, runtimes: FakeRuntimes):
    sandbox = await provider.create(_workspace(runtimes), owner="x")
    late = await sandbox.exec("echo before; sleep 30", timeout_s=0.5)
    assert (late.exit_code, late.timed_out, late.output) == (124, True, "before\n")
    long = await sandbox.exec("seq 100000", timeout_s=20, max_output_bytes=100)
    assert long.output.startswith("1\n2\n") and long.output.endswith("100000\n")
    assert long.truncated_bytes == 588895 - 100


async def test_what_a_command_left_running_is_killed(provider: OpenHandsProvider, runtimes: FakeRuntimes):
    sandbox = await provider.create(_workspace(runtimes), owner="x")
    left = "until [ -e go ]; do sleep 0.01; done; touch changed"
    await sandbox.exec(f"nohup setsid bash -c '{left}' >/dev/null 2>&1 & setsid sleep 5 & echo on", timeout_s=5)
    assert (await sandbox.exec("touch go; sleep 0.2; ls", timeout_s=5)).output == "go\n"


async def test_files(provider: OpenHandsProvider, runtimes: FakeRuntimes):
    sandbox = await provider.create(_workspace(runtimes), owner="x")
    await sandbox.write_file("deep/file", b"\0\xff" * 100_000)
    assert await sandbox.read_file("deep/file") == b"\0\xff" * 100_000
    with pytest.raises(MissingFileError):
        await sandbox.read_file("missing")
    await sandbox.exec("ln -s /etc etc", timeout_s=5)
    for path in ("/etc/passwd", "../x", "etc/passwd"):
        with pytest.raises(SandboxError):
            await sandbox.read_file(path)


async def test_what_goes_wrong_is_a_sandbox_error(
    provider: OpenHandsProvider, runtimes: FakeRuntimes, monkeypatch: pytest.MonkeyPatch
):
    runtimes.alive_after = 10**6
    with pytest.raises(SandboxError, match="x: its runtime did not come up"):
        await provider.create(_workspace(runtimes), owner="x")
    assert runtimes.stopped == ["id1"]
    monkeypatch.setenv("TEST_RUNTIME_KEY", "wrong-key")
    other = OpenHandsProvider(replace(CONFIG, runtime_url=runtimes.url))
    with pytest.raises(SandboxError, match="403") as caught:
        await other.create(_workspace(runtimes), owner="x")
    assert "key" not in str(caught.value)
    await other.close()


async def test_an_answer_without_a_result_is_a_sandbox_error(provider: OpenHandsProvider, runtimes: FakeRuntimes):
    sandbox = await provider.create(Workspace(image="a", workdir="/nowhere/at/all"), owner="x")
    with pytest.raises(SandboxError, match="without a result"):
        await sandbox.exec("true", timeout_s=5)


async def test_folders_and_doors_are_refused(provider: OpenHandsProvider, tmp_path: Path):
    with pytest.raises(UserError, match="swe_rl"):
        await provider.create(Workspace(path=tmp_path), owner="x")
    with pytest.raises(UserError, match="gateway"):
        await provider.create(Workspace(image="a"), owner="x", door=Door("127.0.0.1", 1, "/v1"))
