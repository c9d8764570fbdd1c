"""The way out of a sandbox to the gateway, and only there."""

import asyncio
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox import door as door_module
from swe_rl.sandbox.door import Doorway, direct_url
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.remote.server import ServerOptions, run_server
from swe_rl.sandbox.sandbox import Door, SandboxError, Workspace

GET = """python3 - <<'E'
import urllib.request
print(urllib.request.urlopen("{url}/models", timeout=5).read().decode())
E"""
PATH = "/sessions/a%2Fb/the-secret/v1"
REFUSED = [
    f"{line}\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    for line in (
        "GET /metrics HTTP/1.1",
        "GET /router/state HTTP/1.1",
        "GET /health HTTP/1.1",
        "GET /version HTTP/1.1",
        "GET / HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /v1 HTTP/1.1",
        "GET /v1/ HTTP/1.1",
        "POST /v1/completions HTTP/1.1",
        "POST /v1/models HTTP/1.1",
        "DELETE /v1/models HTTP/1.1",
        "GET /v1/models/ HTTP/1.1",
        "GET /v1//models HTTP/1.1",
        "GET //v1/models HTTP/1.1",
        "GET /V1/models HTTP/1.1",
        "GET /v1/./models HTTP/1.1",
        "GET /v1/../metrics HTTP/1.1",
        "GET /v1/models/../../metrics HTTP/1.1",
        "GET /v1/models/../models HTTP/1.1",
        "GET /v1/%2e%2e/metrics HTTP/1.1",
        "GET /v1/%2E%2E%2Fmetrics HTTP/1.1",
        "GET /v1%2fmodels HTTP/1.1",
        "GET /v1/%6dodels HTTP/1.1",
        "GET /v1/models;x HTTP/1.1",
        "GET /v1/models#x HTTP/1.1",
        "GET /v1/models%3fx HTTP/1.1",
        "GET /v1/messages HTTP/1.1",
        "POST /v1/messages/batches HTTP/1.1",
        "DELETE /v1/responses/resp_other-0 HTTP/1.1",
        "POST /v1/responses/../completions HTTP/1.1",
        "GET /sessions/other/v1/models HTTP/1.1",
        "POST /sessions/other/v1/chat/completions HTTP/1.1",
        "DELETE /sessions/other HTTP/1.1",
        f"GET {PATH}/models HTTP/1.1",
        "GET http://127.0.0.1/metrics HTTP/1.1",
        "GET http://127.0.0.1/v1/models HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "PRI * HTTP/2.0",
        "what is this",
    )
]
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
    yield Door("127.0.0.1", server.sockets[0].getsockname()[1], PATH)
    server.close()


@pytest.fixture
async def provider(tmp_path: Path, isolation: Isolation) -> AsyncIterator[ProcessProvider]:
    made = ProcessProvider(SandboxConfig(isolation=isolation), tmp_path / "scratch", warn=pytest.fail)
    yield made
    await made.close()


async def test_a_command_reaches_the_gateway(provider: ProcessProvider, workspace: Workspace, gateway: Door):
    sandbox = await provider.create(workspace, owner="x", door=gateway)
    inside = f"http://127.0.0.1:{gateway.port}/v1"
    assert sandbox.door_url == (inside if provider.isolated else direct_url(gateway))
    for _ in range(2):
        result = await sandbox.exec(GET.format(url=sandbox.door_url), timeout_s=20)
        assert (result.exit_code, result.output) == (0, f"answer to {PATH}/models\n")


async def test_many_connections_at_once(provider: ProcessProvider, workspace: Workspace, gateway: Door):
    sandbox = await provider.create(workspace, owner="x", door=gateway)
    say = f"printf 'GET {urlsplit(sandbox.door_url).path.replace('%', '%%')}/models?%s HTTP/1.0\\r\\n\\r\\n' $i >&3"
    say += "; echo $(tail -n 1 <&3)"
    get = f"exec 3<>/dev/tcp/127.0.0.1/{gateway.port}; {say}"
    result = await sandbox.exec(f"for i in $(seq 20); do ({get}) & done; wait", timeout_s=30)
    query = [f"?{number}" for number in range(1, 21)] if not provider.isolated else [""] * 20
    assert sorted(result.output.splitlines()) == sorted(f"answer to {PATH}/models{one}" for one in query)


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


async def _ask(folder: Path, request: bytes) -> bytes:
    """What the socket answers, until it closes or says nothing for a while."""
    reader, writer = await asyncio.open_unix_connection(str(folder / "door.sock"))
    writer.write(request)
    said = b""
    try:
        while more := await asyncio.wait_for(reader.read(65536), 0.5):
            said += more
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return said


async def test_a_gateway_that_is_gone_is_told(tmp_path: Path):
    doorway = Doorway(Door("127.0.0.1", 1, PATH), tmp_path / "door", "/inside")
    await doorway.open()
    said = await _ask(tmp_path / "door", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 502 ") and b"gateway_unreachable" in said and b"secret" not in said
    await doorway.close()


async def test_half_an_answer_does_not_look_whole(tmp_path: Path):
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    doorway = Doorway(Door("127.0.0.1", server.sockets[0].getsockname()[1], PATH), tmp_path / "door", "/inside")
    await doorway.open()
    said = await _ask(tmp_path / "door", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert said.endswith(b"hello\r\n") and not said.endswith(b"0\r\n\r\n")
    await doorway.close()
    server.close()


class Heard:
    """A gateway that keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        chunked = b"chunked" in head
        self.requests.append(head + (await reader.readuntil(b"0\r\n\r\n") if chunked else b""))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Own: 1\r\nSet-Cookie: a=b\r\n\r\nok")
        await writer.drain()
        writer.close()


async def test_nothing_else_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    doorway = Doorway(Door("127.0.0.1", server.sockets[0].getsockname()[1], PATH), tmp_path / "door", "/inside")
    await doorway.open()
    answers = await asyncio.gather(*(_ask(tmp_path / "door", request.encode()) for request in REFUSED))
    for request, answer in zip(REFUSED, answers, strict=True):
        assert answer.split()[1] in (b"404", b"400"), request
    assert heard.requests == [] and not caplog.records
    await doorway.close()
    server.close()


async def test_each_request_of_a_connection_is_looked_at_and_written_anew(tmp_path: Path):
    """Also one that hides in another one's body, or behind lengths that contradict each other."""
    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    doorway = Doorway(Door("127.0.0.1", server.sockets[0].getsockname()[1], PATH), tmp_path / "door", "/inside")
    await doorway.open()
    hidden = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    head = "POST /v1/chat/completions?program_id=a HTTP/1.1\r\nHost: evil\r\nX-Program-Id: other\r\nCookie: a=b\r\n"
    good = f"{head}Authorization: Bearer key\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}"
    said = await _ask(tmp_path / "door", (good + hidden + good).encode())
    assert [said.count(b"HTTP/1.1 200"), said.count(b"HTTP/1.1 404")] == [2, 1]
    assert b"X-Own" not in said and b"Cookie" not in said
    assert len(heard.requests) == 2
    for request in heard.requests:
        line, *headers = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert line == f"POST {PATH}/chat/completions HTTP/1.1" and "Authorization: Bearer key" in headers
        assert not {one.partition(":")[0] for one in headers} & {"X-Program-Id", "Cookie"}
        assert "Host: evil" not in headers
        assert hidden.encode() in request
    both = f"{head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    assert b" 200 " not in await _ask(tmp_path / "door", both.encode())
    assert len(heard.requests) == 2
    await doorway.close()
    server.close()


async def test_one_sandbox_holds_so_many_connections(tmp_path: Path, gateway: Door):
    doorway = Doorway(gateway, tmp_path / "door", "/inside")
    await doorway.open()
    path = str(tmp_path / "door" / "door.sock")
    held = [await asyncio.open_unix_connection(path) for _ in range(64)]
    get = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    await asyncio.sleep(0.1)
    assert await _ask(tmp_path / "door", get) == b""
    for _, writer in held:
        writer.close()
    await asyncio.sleep(0.1)
    assert b"answer to" in await _ask(tmp_path / "door", get)
    await doorway.close()


def refused_inside(port: int | None) -> str:
    """A command that sends each of REFUSED, and prints the status of each answer."""
    words = " ".join(shlex.quote(one.replace("\\", "\\\\").replace("\r\n", "\\r\\n")) for one in REFUSED)
    each = f'exec 3<>/dev/tcp/127.0.0.1/{port}; printf %b "$one" >&3; read -r -t 5 _ status _ <&3; echo "$status"'
    return f"for one in {words}; do {each}; done"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_sandbox_servers_door_is_as_narrow(tmp_path: Path, workspace: Workspace):
    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    door = Door("127.0.0.1", server.sockets[0].getsockname()[1], PATH)
    behind = ProcessProvider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "there", warn=pytest.fail)
    async with run_server(behind, tmp_path / "server", ServerOptions(slots=2, lease_s=60.0, key=None)) as url:
        provider = make_provider(
            SandboxConfig(kind=SandboxKind.remote, runtime_url=url), tmp_path / "here", warn=pytest.fail
        )
        sandbox = await provider.create(workspace, owner="x", door=door)
        assert sandbox.door_url == f"http://127.0.0.1:{door.port}/v1"
        result = await sandbox.exec(refused_inside(door.port), timeout_s=60)
        assert (len(result.output.split()), set(result.output.split())) == (len(REFUSED), {"404", "400"})
        assert heard.requests == []
        assert (await sandbox.exec(GET.format(url=sandbox.door_url), timeout_s=20)).output == "ok\n"
        assert [one.split()[1] for one in heard.requests] == [f"{PATH}/models".encode()]
        await provider.close()
    server.close()


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
    assert direct_url(Door("::1", 80, "/sessions/a/b/v1")) == "http://[::1]:80/sessions/a/b/v1"


def test_the_path_is_in_no_message():
    assert "secret" not in repr(Door("127.0.0.1", 80, PATH))
