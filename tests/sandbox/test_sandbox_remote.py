"""The sandbox server and its client: key, places, leases, lost answers."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.archive import Workspaces, digest_of
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.provider import greet_server
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.calls import RuntimeClient
from swe_rl.sandbox.remote.client import RemoteProvider
from swe_rl.sandbox.remote.server import Leases, RuntimeServer, ServerOptions, run_server
from swe_rl.sandbox.sandbox import ExecResult, SandboxError, Snapshot, Workspace
from tests.support.scripted_sandbox import ScriptedCommand, ScriptedProvider, ScriptedSandbox

CONFIG = SandboxConfig(kind=SandboxKind.remote, runtime_key_env="TEST_RUNTIME_KEY")
IMAGE = Workspace(image="a")


def answer(asked: ScriptedCommand) -> ExecResult | str:
    if asked.command == "break":
        raise SandboxError("it broke")
    return f"ran {asked.command}"


@pytest.fixture
def behind() -> ScriptedProvider:
    return ScriptedProvider(answer)


@pytest.fixture
async def url(behind: ScriptedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setenv("TEST_RUNTIME_KEY", "secret-key")
    async with run_server(behind, tmp_path, ServerOptions(slots=2, lease_s=60.0, key="secret-key")) as address:
        yield address


@pytest.fixture
async def provider(url: str) -> AsyncIterator[RemoteProvider]:
    made = RemoteProvider(replace(CONFIG, runtime_url=url), pause_s=0.01)
    yield made
    await made.close()


async def test_errors_keep_their_type_and_words(provider: RemoteProvider):
    sandbox = await provider.create(IMAGE, owner="x")
    assert (await sandbox.exec("a", timeout_s=5)).output == "ran a"
    with pytest.raises(SandboxError, match="it broke"):
        await sandbox.exec("break", timeout_s=5)
    with pytest.raises(MissingFileError):
        await sandbox.read_file("missing")


async def test_another_key_is_refused_and_not_shown(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_RUNTIME_KEY", "wrong-key")
    provider = RemoteProvider(replace(CONFIG, runtime_url=url))
    with pytest.raises(UserError, match="runtime_key_env") as caught:
        await provider.create(IMAGE, owner="x")
    assert "secret-key" not in str(caught.value) and "wrong-key" not in str(caught.value)
    await provider.close()


async def test_health_needs_no_key_and_counts(url: str, provider: RemoteProvider):
    await provider.create(IMAGE, owner="x")
    async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
        assert await response.json() == {"status": "ok", "slots": 2, "used": 1}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/sandboxes") as response:
        assert response.status == 401


async def test_the_list_names_owners(url: str, provider: RemoteProvider):
    await provider.create(IMAGE, owner="django/1")
    headers = {wire.KEY_HEADER: "secret-key"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/sandboxes") as response:
        (row,) = (await response.json())["sandboxes"]
    assert row["owner"] == "django/1" and row["commands"] == 0


async def test_a_server_may_be_silent_while_it_makes_or_restores_a_snapshot(provider: RemoteProvider, monkeypatch):
    """To make an image of a large container takes minutes, and the server is well meanwhile."""

    async def wait(*_: object) -> Snapshot:
        await asyncio.sleep(0.4)
        return Snapshot("s")

    sandbox = await provider.create(IMAGE, owner="x")
    monkeypatch.setattr(ScriptedSandbox, "snapshot", wait, raising=False)
    monkeypatch.setattr(ScriptedSandbox, "reset", wait, raising=False)
    monkeypatch.setattr(RuntimeClient.ask, "__kwdefaults__", {"silence_s": 0.1, "again": True})
    assert await sandbox.snapshot() == Snapshot("s")
    await sandbox.reset(Snapshot("s"))


async def test_a_server_that_was_started_anew_is_sent_its_folders_again(tmp_path: Path, monkeypatch):
    """It has a folder of its own for what it is sent. Without that, no sandbox would ever start there again."""
    monkeypatch.setenv("TEST_RUNTIME_KEY", "secret-key")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").write_text("x = 1\n")
    workspace = Workspace(path=tmp_path / "work")
    options = ServerOptions(slots=9, lease_s=60.0, key="secret-key")
    async with run_server(ScriptedProvider(answer), tmp_path / "first", options) as url:
        provider = RemoteProvider(replace(CONFIG, runtime_url=url), pause_s=0.01)
        await (await provider.create(workspace, owner="x")).close()
    again = replace(options, port=urlsplit(url).port or 0)
    async with run_server(ScriptedProvider(answer), tmp_path / "second", again):
        sandboxes = await asyncio.gather(*(provider.create(workspace, owner=f"y{number}") for number in range(4)))
        assert [(await sandbox.exec("a", timeout_s=5)).output for sandbox in sandboxes] == ["ran a"] * 4
        await provider.close()
    assert len([*(tmp_path / "second" / "workspaces").iterdir()]) == 1


async def test_a_start_waits_for_a_place(provider: RemoteProvider, behind: ScriptedProvider, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.remote.client._FULL_PAUSE_S", 0.02)
    one, _ = [await provider.create(IMAGE, owner="x") for _ in range(2)]
    third = asyncio.ensure_future(provider.create(IMAGE, owner="y"))
    await asyncio.sleep(0.1)
    assert not third.done() and len(behind.sandboxes) == 2
    await one.close()
    await asyncio.wait_for(third, 5)


async def test_asking_twice_starts_once(url: str, behind: ScriptedProvider):
    order = {"request_id": "r1", "owner": "x", "image": "a", "workdir": "/testbed"}
    headers = {wire.KEY_HEADER: "secret-key", wire.RUN_HEADER: "run"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def start() -> int:
            async with session.post(f"{url}/sandboxes", json=order) as response:
                return response.status

        assert await asyncio.gather(*(start() for _ in range(4))) == [201] * 4
        async with session.post(f"{url}/sandboxes", json={"owner": 1}) as response:
            assert response.status == 400
    assert len(behind.sandboxes) == 1


async def test_the_end_of_a_client_ends_its_sandboxes(url: str, behind: ScriptedProvider):
    one, two = (RemoteProvider(replace(CONFIG, runtime_url=url)) for _ in range(2))
    await one.create(IMAGE, owner="x")
    kept = await two.create(IMAGE, owner="y")
    await one.close()
    assert [sandbox.closed for sandbox in behind.sandboxes] == [True, False]
    assert (await kept.exec("a", timeout_s=5)).output == "ran a"
    await two.close()


async def test_a_silent_run_loses_its_sandboxes(behind: ScriptedProvider, tmp_path: Path):
    async with run_server(behind, tmp_path, ServerOptions(slots=2, lease_s=0.2, key=None)) as address:
        provider = RemoteProvider(replace(CONFIG, runtime_url=address, lease_s=600.0))
        sandbox = await provider.create(IMAGE, owner="x")
        for _ in range(200):
            if behind.sandboxes[0].closed:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(SandboxError, match="lease"):
            await sandbox.exec("a", timeout_s=5)
        await provider.close()


async def test_a_server_that_is_gone_is_a_sandbox_error(behind: ScriptedProvider, tmp_path: Path):
    async with run_server(behind, tmp_path, ServerOptions(slots=2, lease_s=60.0, key=None)) as address:
        provider = RemoteProvider(replace(CONFIG, runtime_url=address), pause_s=0.001)
        sandbox = await provider.create(IMAGE, owner="x")
    with pytest.raises(SandboxError, match="does not answer"):
        await sandbox.exec("a", timeout_s=5)
    with pytest.raises(SandboxError, match="does not answer"):
        await provider.create(IMAGE, owner="y")
    await provider.close()


async def test_a_cancelled_start_holds_no_place(provider: RemoteProvider, behind: ScriptedProvider):
    for _ in range(5):
        start = asyncio.ensure_future(provider.create(IMAGE, owner="x"))
        await asyncio.sleep(0.005)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        if not start.cancelled():
            await start.result().close()
    assert behind.open_sandboxes == []


def test_an_open_address_needs_a_key(behind: ScriptedProvider, tmp_path: Path):
    with pytest.raises(UserError, match="key"):
        RuntimeServer(behind, tmp_path, ServerOptions(slots=1, lease_s=1.0, key=None, host="0.0.0.0"))


def test_no_address_is_the_users_error():
    with pytest.raises(UserError, match="runtime_url"):
        RemoteProvider(CONFIG)


@pytest.mark.parametrize("output", ["", "a\nä\U0001f600", "\0\x1b", "\ufffd", "\udc80"])
def test_a_result_survives_the_wire(output: str):
    result = ExecResult(124, output, True, 5, 1.5)
    assert wire.result_from_json(wire.result_to_json(result)) == result


def test_leases_end_with_silence():
    leases: Leases[str] = Leases(10.0)
    leases.hold("a", "s1", "one", 0.0)
    leases.hold("b", "s2", "two", 5.0)
    assert leases.renew("a", 8.0) == 1 and leases.get("b", "s1", 8.0) is None
    assert leases.lapse(17.0) == [] and leases.lapse(18.5) == ["one", "two"]
    assert leases.everyone() == [] and leases.drop("a", "s1") is None and leases.end("a") == []


def test_a_workspace_is_what_its_digest_says(tmp_path: Path):
    from swe_rl.sandbox.container.files import pack_folder

    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    archive = pack_folder(source, ".")
    (tmp_path / "tar").write_bytes(archive)
    workspaces = Workspaces(tmp_path / "workspaces")
    assert workspaces.path(digest_of(archive)) is None
    workspaces.add(digest_of(archive), tmp_path / "tar")
    workspaces.add(digest_of(archive), tmp_path / "tar")
    found = workspaces.path(digest_of(archive))
    assert found is not None and (found / "file").read_text() == "content"
    with pytest.raises(SandboxError, match="damaged"):
        workspaces.add("0" * 64, tmp_path / "tar")
    with pytest.raises(SandboxError):
        workspaces.path("../../etc")


def unpacked(tmp_path: Path, *members: tuple[str, str | bytes | None]) -> Path:
    """What the server makes of an archive: (name, content), (name, None) for a folder, or "hard"/"sym:target"."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, what in members:
            entry = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                entry.size = len(what)
                tar.addfile(entry, io.BytesIO(what))
                continue
            kind, _, entry.linkname = (what or "folder:").partition(":")
            entry.type = {"hard": tarfile.LNKTYPE, "sym": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}[kind]
            tar.addfile(entry)
    (tmp_path / "tar").write_bytes(made.getvalue())
    workspaces, digest = Workspaces(tmp_path / "w"), digest_of(made.getvalue())
    workspaces.add(digest, tmp_path / "tar")
    found = workspaces.path(digest)
    assert found is not None
    return found


def test_links_within_a_workspace_and_links_that_lead_anywhere_stay_what_they_are(tmp_path: Path):
    links = [("same", "hard:a/file"), ("python", "sym:/usr/bin/x")]
    found = unpacked(tmp_path, (".", None), ("a", None), ("a/file", b"content"), *links)
    assert (found / "same").samefile(found / "a/file") and (found / "same").read_bytes() == b"content"
    assert (found / "python").readlink() == Path("/usr/bin/x")


@pytest.mark.parametrize(
    "members",
    [
        [("in", "hard:{secret}")],
        [("in", "hard:{secret}"), ("in", b"overwritten")],
        [("in", "hard:../secret")],
        [("out", "sym:{top}"), ("in", "hard:out/secret")],
        [("out", "sym:{secret}"), ("in", "hard:out")],
        [("out", "sym:{top}"), ("out/escaped", b"x")],
        [("out", "sym:{secret}"), ("out", b"overwritten")],
        [(".", "sym:{top}"), ("escaped", b"x")],
        [("../escaped", b"x")],
        [("{top}/escaped", b"x")],
        [("in", "hard:never_sent")],
        [("file", b"x"), ("file/below", b"x")],
    ],
)
def test_an_archive_cannot_leave_its_folder(tmp_path: Path, members: list[tuple[str, str | bytes]]):
    """Names that lead out, through links of the archive's own too; hard links to what is not in it."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o600)

    def filled(text: str | bytes) -> str | bytes:
        return text.format(secret=secret, top=tmp_path) if isinstance(text, str) else text

    with pytest.raises(SandboxError, match="cannot be unpacked"):
        unpacked(tmp_path, *((str(filled(name)), filled(what)) for name, what in members))
    assert secret.read_text() == "of the host" and secret.stat().st_nlink == 1
    assert not (tmp_path / "escaped").exists() and list((tmp_path / "w").iterdir()) == []


def test_an_archive_of_headers_upon_headers_is_refused(tmp_path: Path):
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 0
    archive = long_name.tobuf(tarfile.GNU_FORMAT) * 3000
    (tmp_path / "tar").write_bytes(archive)
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        Workspaces(tmp_path / "w").add(digest_of(archive), tmp_path / "tar")


COMMAND = b'{"command_id": "c", "command": "a", "timeout_s": %s}'


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/sandboxes", b"[" * 100_000, 400),
        ("/sandboxes", b"\xff", 400),
        ("/sandboxes", b"[]", 400),
        ("/sandboxes/{name}/exec", b"{}", 400),
        ("/sandboxes/{name}/exec", b"[1]", 400),
        ("/sandboxes/{name}/exec", b"[" * 100_000, 400),
        ("/sandboxes/{name}/exec", b'{"command_id": "c", "command": "a"}', 400),
        ("/sandboxes/{name}/exec", COMMAND % b'"soon"', 400),
        ("/sandboxes/{name}/exec", COMMAND % b"NaN", 400),
        ("/sandboxes/{name}/exec", COMMAND % b'1, "env": [1]', 400),
        ("/sandboxes/{name}/exec", COMMAND % b'1, "env": {"a": 1}', 400),
        ("/sandboxes/{name}/exec", COMMAND % b'1, "max_output_bytes": 1e999', 400),
        ("/sandboxes/{name}/exec", COMMAND % b"1", 200),
    ],
)
async def test_a_body_that_makes_no_sense_is_the_clients_fault(
    url: str, provider: RemoteProvider, path: str, body: bytes, status: int
):
    sandbox = await provider.create(IMAGE, owner="x")
    headers = {wire.KEY_HEADER: "secret-key", wire.RUN_HEADER: provider._client._headers[wire.RUN_HEADER]}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url + path.format(name=sandbox.sandbox_id), data=body) as response,
    ):
        answer = await response.json()
        assert response.status == status
        assert status == 200 or answer["error"].startswith("the server does not understand the request")
    assert (await sandbox.exec("a", timeout_s=5)).output == "ran a"


async def test_odd_headers_are_refused_like_any_other(url: str):
    """Bytes that are no text; a character set that nobody knows."""
    address = urlsplit(url)

    async def said(head: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head)
        line = await reader.readline()
        writer.close()
        return line

    assert b" 401 " in await said(b"GET /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: k\xc3\xa9y\xff\r\n\r\n")
    head = b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: secret-key\r\nContent-Length: 2\r\n"
    assert b" 400 " in await said(head + b"Content-Type: application/json; charset=nobody\r\n\r\n{}")


async def test_a_server_is_greeted_before_anything_depends_on_it(url: str, monkeypatch: pytest.MonkeyPatch):
    await greet_server(replace(CONFIG, runtime_url=url))
    monkeypatch.setenv("TEST_RUNTIME_KEY", "another")
    with pytest.raises(UserError, match="wants another key: export TEST_RUNTIME_KEY"):
        await greet_server(replace(CONFIG, runtime_url=url))
    with pytest.raises(UserError, match="Start the server there, or correct the address"):
        await greet_server(replace(CONFIG, runtime_url="http://127.0.0.1:9"))
    monkeypatch.setenv("TEST_RUNTIME_KEY", "secret-key")
    with pytest.raises(UserError, match="no sandbox server that is well: status 404"):
        await greet_server(replace(CONFIG, runtime_url=f"{url}/elsewhere"))


@asynccontextmanager
async def _losing(url: str, answer: web.Response | None) -> AsyncIterator[str]:
    """A way to the server that passes everything on, and once loses what a start is answered: `answer` in its place."""
    lost = False

    async def forward(request: web.Request) -> web.StreamResponse:
        nonlocal lost
        kept = (wire.KEY_HEADER, wire.RUN_HEADER, "Content-Type")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        call = {"data": await request.read(), "headers": headers}
        async with aiohttp.request(request.method, url + request.path_qs, **call) as there:  # type: ignore[arg-type]
            content, status = await there.read(), there.status
        if (request.method, request.path) == ("POST", "/sandboxes") and not lost:
            lost = True
            if answer is not None:
                return answer
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_start_whose_answer_is_lost_is_adopted(url: str, behind: ScriptedProvider):
    async with _losing(url, None) as address:
        provider = RemoteProvider(replace(CONFIG, runtime_url=address), pause_s=0.01)
        sandbox = await provider.create(IMAGE, owner="x")
        assert (await sandbox.exec("a", timeout_s=5)).output == "ran a"
        assert len(behind.sandboxes) == 1 and not behind.sandboxes[0].closed
        await provider.close()
    assert behind.sandboxes[0].closed


async def test_a_start_that_a_proxy_answers_504_is_taken_back(url: str, behind: ScriptedProvider):
    async with _losing(url, web.Response(status=504, text="<html>Gateway Time-out</html>")) as address:
        provider = RemoteProvider(replace(CONFIG, runtime_url=address), pause_s=0.01)
        with pytest.raises(SandboxError):
            await provider.create(IMAGE, owner="x")
        assert [one.closed for one in behind.sandboxes] == [True]
        assert (await (await provider.create(IMAGE, owner="x")).exec("a", timeout_s=5)).output == "ran a"
        await provider.close()


@pytest.mark.parametrize(
    ("places", "error", "words"),
    [
        ("/tests", TypeError, "no list of texts"),
        (["/tests", 1], TypeError, "no list of texts"),
        (["/p"] * 17, ValueError, "17 places are more than 16"),
        *((["/tests", place], ValueError, "no absolute path") for place in ("/", "x", "/a/../b", "/a/", "/a\0", "")),
        (["/" + "a" * 200], ValueError, "no absolute path"),
    ],
)
def test_what_is_no_short_list_of_places_is_refused(places, error, words):
    assert wire.places_of(["/tests", "/logs/verifier"]) == ("/tests", "/logs/verifier") and wire.places_of([]) == ()
    with pytest.raises(error, match=words):
        wire.places_of(places)
