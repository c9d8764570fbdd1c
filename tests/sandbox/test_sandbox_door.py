"""The way out of a sandbox to the gateway, and only there."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox import door as door_module
from swe_rl.sandbox.door import Doorway, direct_url
from swe_rl.sandbox.process import ProcessProvider
from swe_rl.sandbox.protocol import Door, SandboxError, Workspace

GET = """python3 - <<'E'
import urllib.request
print(urllib.request.urlopen("{url}/hello", timeout=5).read().decode())
E"""
INSIDE = Path(door_module.__file__).parent / "inside"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    body = b"answer to " + request.split()[1]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


@pytest.fixture
async def gateway() -> AsyncIterator[Door]:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    yield Door("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()


@pytest.fixture
async def provider(tmp_path: Path, isolation: Isolation) -> AsyncIterator[ProcessProvider]:
    made = ProcessProvider(SandboxConfig(isolation=isolation), tmp_path / "scratch", warn=pytest.fail)
    yield made
    await made.close()


async def test_a_command_reaches_the_gateway(provider: ProcessProvider, workspace: Workspace, gateway: Door):
    sandbox = await provider.create(workspace, owner="x", door=gateway)
    assert sandbox.door_url == f"http://127.0.0.1:{gateway.port}"
    for _ in range(2):
        result = await sandbox.exec(GET.format(url=sandbox.door_url), timeout_s=20)
        assert (result.exit_code, result.output) == (0, "answer to /hello\n")


async def test_many_connections_at_once(provider: ProcessProvider, workspace: Workspace, gateway: Door):
    sandbox = await provider.create(workspace, owner="x", door=gateway)
    say = "printf 'GET /%s HTTP/1.0\\r\\n\\r\\n' $i >&3; echo $(tail -n 1 <&3)"
    get = f"exec 3<>/dev/tcp/127.0.0.1/{gateway.port}; {say}"
    result = await sandbox.exec(f"for i in $(seq 20); do ({get}) & done; wait", timeout_s=30)
    assert sorted(result.output.splitlines()) == sorted(f"answer to /{i}" for i in range(1, 21))


async def test_without_a_door_there_is_no_url(provider: ProcessProvider, workspace: Workspace):
    sandbox = await provider.create(workspace, owner="x")
    assert sandbox.door_url is None
    assert (await sandbox.exec("echo plain", timeout_s=10)).output == "plain\n"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_no_other_address_opens(tmp_path: Path, workspace: Workspace, gateway: Door):
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "s", warn=pytest.fail)
    other = await asyncio.start_server(_answer, "127.0.0.1", 0)
    sandbox = await provider.create(workspace, owner="x", door=gateway)
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    assert (await sandbox.exec(GET.format(url=url), timeout_s=20)).exit_code != 0
    closed = await provider.create(workspace, owner="y")
    assert (await closed.exec(GET.format(url=sandbox.door_url), timeout_s=20)).exit_code != 0
    await provider.close()
    other.close()


async def test_the_folders_path_may_be_long(tmp_path: Path, gateway: Door):
    folder = tmp_path / ("long" * 30)
    doorway = Doorway(gateway, folder, "/inside")
    await doorway.open()
    assert (folder / "door.sock").is_socket()
    await doorway.close()
    await doorway.close()
    assert not (folder / "door.sock").exists()


async def test_a_folder_that_cannot_be_is_a_sandbox_error(tmp_path: Path, gateway: Door):
    with pytest.raises(SandboxError, match="no door to 127"):
        await Doorway(gateway, tmp_path / "missing" / "folder", "/inside").open()


async def test_a_gateway_that_is_gone_closes_the_connection(tmp_path: Path):
    doorway = Doorway(Door("127.0.0.1", 1), tmp_path / "door", "/inside")
    await doorway.open()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "door" / "door.sock"))
    with pytest.raises(ConnectionError):
        if not await reader.read(10):
            raise ConnectionResetError
    writer.close()
    await doorway.close()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param([sys.executable, "-I", "-S", str(INSIDE / "door.py")], id="python"),
        pytest.param(
            ["node", str(INSIDE / "door.js")],
            id="node",
            marks=pytest.mark.skipif(shutil.which("node") is None, reason="needs node"),
        ),
    ],
)
async def test_a_port_that_is_taken_is_told(start: list[str], gateway: Door, tmp_path: Path):
    done = await asyncio.to_thread(
        subprocess.run, [*start, str(gateway.port), str(tmp_path / "no.sock")], capture_output=True, timeout=20
    )
    assert done.returncode != 0


def test_an_ipv6_address_is_bracketed():
    assert direct_url(Door("::1", 80)) == "http://[::1]:80"
