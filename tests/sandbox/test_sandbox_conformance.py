"""What every kind of sandbox does alike."""

import asyncio
import contextlib
import functools
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.apptainer.provider import ApptainerProvider
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.door import direct_url
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.server import ServerOptions, run_server
from swe_rl.sandbox.sandbox import (
    Door,
    Sandbox,
    SandboxError,
    SandboxProvider,
    Toolchain,
    Workspace,
    put_files,
    run_whole,
)
from tests.sandbox.test_sandbox_door import REFUSED, Heard, refused_inside
from tests.support.waiting import until

_MIB = 1024**2
KINDS = [
    pytest.param("none", id="process"),
    pytest.param(
        "bubblewrap",
        id="bubblewrap",
        marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    ),
    pytest.param(
        "apptainer",
        id="apptainer",
        marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap to stand in for apptainer"),
    ),
    pytest.param("remote", id="remote"),
    pytest.param("docker", id="docker", marks=pytest.mark.docker),
    pytest.param("podman", id="podman", marks=pytest.mark.docker),
]


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    if request.param in ("none", "bubblewrap"):
        return SandboxConfig(isolation=Isolation(request.param), max_file_mb=64)
    if request.param in ("apptainer", "remote"):
        fixed = {"image": "/image.sif", "memory_gb": 1.0, "max_file_mb": 64, "concurrency": 16}
        return SandboxConfig(kind=SandboxKind(request.param), isolation=Isolation.none, **fixed)  # type: ignore[arg-type]
    return request.getfixturevalue("container_config")(SandboxKind(request.param), max_file_mb=64)  # type: ignore[no-any-return]


@pytest.fixture
async def provider(config: SandboxConfig, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    async with contextlib.AsyncExitStack() as stack:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        if config.kind is SandboxKind.remote:
            behind = make_provider(replace(config, kind=SandboxKind.process), tmp_path / "there", warn=pytest.fail)
            options = ServerOptions(slots=16, lease_s=60.0, key=None)
            url = await stack.enter_async_context(run_server(behind, tmp_path / "server", options))
            config = replace(config, runtime_url=url)
        if config.kind is SandboxKind.apptainer:
            program = str(Path(__file__).parent / "fake_apptainer.py")
            made: SandboxProvider = ApptainerProvider(config, scratch, warn=pytest.fail, program=program)
        else:
            made = make_provider(config, scratch, warn=pytest.fail)
        stack.push_async_callback(made.close)
        yield made


@pytest.fixture
async def sandbox(provider: SandboxProvider, workspace: Workspace) -> Sandbox:
    return await provider.create(workspace, owner="group/one")


async def test_it_starts_from_a_copy(sandbox: Sandbox, workspace: Workspace):
    result = await sandbox.exec("pwd; git status --short; ./run.sh; readlink link; echo x > new", timeout_s=20)
    assert result.output == f"{sandbox.workdir}\nran\ncalc.py\n"
    assert (result.exit_code, result.timed_out, result.truncated_bytes) == (0, False, 0)
    assert workspace.path is not None and not (workspace.path / "new").exists()


async def test_the_exit_status(sandbox: Sandbox):
    expected = {"exit 3": 3, "kill -9 $$": 137, "no_such_program_here": 127, "true": 0, "": 0}
    assert {command: (await sandbox.exec(command, timeout_s=20)).exit_code for command in expected} == expected


async def test_output_is_both_streams_in_order_and_always_text(sandbox: Sandbox):
    script = "echo out; echo err >&2; printf 'a\\377b\\000c'; printf 'ä\\n'"
    assert (await sandbox.exec(script, timeout_s=20)).output == "out\nerr\na\ufffdb\0cä\n"


async def test_a_command_and_its_variables_arrive_as_they_are(sandbox: Sandbox):
    odd = ["a  b\tc", "$HOME `id` \\n %s", "line\nline\n", "'\"", "ä\u20ac\U0001f600", "\x10\x11\x1b[0m", "-n", "*"]
    for text in odd:
        quoted = "'" + text.replace("'", "'\\''") + "'"
        result = await sandbox.exec(f'printf "%s|%s" {quoted} "$GIVEN"', timeout_s=20, env={"GIVEN": text})
        assert result.output == f"{text}|{text}"


async def test_the_command_reads_nothing(sandbox: Sandbox):
    assert (await sandbox.exec("cat; read -r x; echo $?", timeout_s=20)).output == "1\n"


async def test_the_environment_holds_nothing_of_this_process(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY", "secret")
    found = (await sandbox.exec("env; cat /proc/1/environ | tr '\\0' '\\n'", timeout_s=20)).output
    assert "secret" not in found
    assert "LANG=C.UTF-8" in found and "GIT_TERMINAL_PROMPT=0" in found


async def test_long_output_keeps_head_and_tail(sandbox: Sandbox):
    result = await sandbox.exec("echo first; seq 1000000; echo last", timeout_s=60, max_output_bytes=1000)
    assert result.output.startswith("first\n1\n") and result.output.endswith("1000000\nlast\n")
    assert result.truncated_bytes == len("first\nlast\n") + 6888896 - 1000
    assert len(result.output) < 1100


async def test_output_just_at_the_limit_is_whole(sandbox: Sandbox):
    result = await sandbox.exec("printf '%01000d' 7", timeout_s=20, max_output_bytes=1000)
    assert result.output == "0" * 999 + "7" and result.truncated_bytes == 0


async def test_a_timeout_ends_everything_that_was_started(sandbox: Sandbox):
    nap = f"97.{os.getpid()}"
    script = f"echo before; trap '' TERM; (setsid sleep {nap} &) ; env -i /bin/sleep {nap} & sleep {nap}"
    started_s = time.monotonic()
    result = await sandbox.exec(script, timeout_s=1)
    assert (result.exit_code, result.timed_out, result.output) == (124, True, "before\n")
    assert time.monotonic() - started_s < 15
    assert not _naps(nap)
    assert (await sandbox.exec("echo again", timeout_s=20)).output == "again\n"


async def test_nothing_outlives_its_command(sandbox: Sandbox):
    nap = f"98.{os.getpid()}"
    started_s = time.monotonic()
    result = await sandbox.exec(f"(setsid sleep {nap} >/dev/null 2>&1 &); sleep {nap} & echo done", timeout_s=50)
    assert (result.exit_code, result.output) == (0, "done\n")
    assert time.monotonic() - started_s < 15
    assert not _naps(nap)


async def test_what_was_left_running_changes_nothing_any_more(sandbox: Sandbox):
    wait = "until [ -e go ]; do sleep 0.01; done; touch changed"
    left = f"nohup bash -c '{wait}' >/dev/null 2>&1 & (env -i setsid bash -c '{wait}' >/dev/null 2>&1 &)"
    assert (await sandbox.exec(left, timeout_s=20)).exit_code == 0
    assert (await sandbox.exec("touch go; sleep 0.2; ls", timeout_s=20)).output.count("changed") == 0


async def test_a_cancelled_command_is_gone(sandbox: Sandbox):
    nap = f"99.{os.getpid()}"
    running = asyncio.ensure_future(sandbox.exec(f"sleep {nap}", timeout_s=50))
    await until(lambda: bool(_naps(nap)))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _naps(nap)
    assert (await sandbox.exec("echo again", timeout_s=20)).output == "again\n"


@pytest.mark.parametrize("command", ["echo a\0b", "echo " + "x" * 200_000], ids=["nul", "long"])
async def test_a_command_that_cannot_be_is_a_result(sandbox: Sandbox, command: str):
    result = await sandbox.exec(command, timeout_s=20)
    assert result.exit_code == 126 and result.output.startswith("bash: ")


async def test_a_script_longer_than_a_command_may_be_runs_whole(sandbox: Sandbox):
    """Half of a surrogate pair, which nothing encodes, in it; the file is gone before it runs."""
    script = f"""echo {"x" * 200_000} | wc -c; pwd # \ud800\nls $TMPDIR; git status --short; cat; exit 3\n"""
    before = (await sandbox.exec("ls $TMPDIR", timeout_s=20)).output
    result = await run_whole(sandbox, script, 20)
    assert (result.output, result.exit_code) == (f"200001\n{sandbox.workdir}\n{before}", 3)


async def test_a_script_runs_below_names_with_blanks_and_beside_a_variable_of_its_name(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    """Exported, the script would be in the environment of its programs: too long for any of them to start."""
    folder = f"{sandbox.workdir}/with  blanks"
    await sandbox.write_file("with  blanks/kept", b"")
    env = {"TMPDIR": folder, "script": "the image's"}
    monkeypatch.setattr(sandbox, "exec", functools.partial(sandbox.exec, env=env))
    result = await run_whole(sandbox, f": {'x' * 200_000}\nls 'with  blanks'; env | grep -c ^script=\n", 20)
    assert result.output == "kept\n0\n"
    put = await put_files(sandbox, {"a": b"a\n"})
    assert put.startswith(f"{folder}/")
    assert (await sandbox.exec(f"cat '{put}/a'", timeout_s=20)).output == "a\n"


async def test_files_are_put_beside_the_working_folder(sandbox: Sandbox):
    folder = await put_files(sandbox, {"a.txt": b"a\n", "b": b"\0\xff"})
    assert not folder.startswith(f"{sandbox.workdir}/")
    found = await sandbox.exec(f"cat {folder}/*; git status --short", timeout_s=20)
    assert found.output == "a\n\0\ufffd"


async def test_files_of_every_size_go_in_and_out(sandbox: Sandbox):
    for size_bytes in (0, 1, 200_000, 30 * _MIB):
        content = os.urandom(min(size_bytes, _MIB)) * max(1, size_bytes // _MIB)
        await sandbox.write_file("deep/er/file", content)
        assert await sandbox.read_file("deep/er/file") == content
    assert (await sandbox.exec("wc -c < deep/er/file", timeout_s=20)).output == f"{30 * _MIB}\n"


async def test_odd_names(sandbox: Sandbox):
    for name in ("with blank", "-n", "ä", "q'u\"o$te", "a\nb", "*", "./dot/../file"):
        content = f"content of {name!r}".encode()
        await sandbox.write_file(name, content)
        assert await sandbox.read_file(name) == content


async def test_permissions_stay_when_a_file_is_replaced(sandbox: Sandbox):
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho new\n")
    assert (await sandbox.exec("./run.sh; stat -c %a run.sh calc.py", timeout_s=20)).output == "new\n755\n644\n"


async def test_paths_that_leave_are_refused(sandbox: Sandbox):
    paths = ("/etc/passwd", "../x", "a/../../x", "package/../../x", ".", "", "a\0b")
    for path in (*paths, "outside"):
        with pytest.raises(SandboxError):
            await sandbox.read_file(path)
    for path in paths:
        with pytest.raises(SandboxError):
            await sandbox.write_file(path, b"x")


async def test_links_are_followed_within_and_refused_beyond(sandbox: Sandbox):
    await sandbox.exec("ln -s /etc etc; ln -s package p; ln -s loop loop; ln -s .. up", timeout_s=20)
    assert await sandbox.read_file("p/__init__.py") == b""
    assert (await sandbox.read_file("link")).startswith(b"def add")
    await sandbox.write_file("p/new.py", b"new")
    assert (await sandbox.exec("cat package/new.py", timeout_s=20)).output == "new"
    for path in ("etc/passwd", "etc/new", "loop", "loop/x", "up/x"):
        with pytest.raises(SandboxError):
            await sandbox.read_file(path)
        if "/" in path:
            with pytest.raises(SandboxError):
                await sandbox.write_file(path, b"x")


async def test_a_link_is_replaced_by_what_is_written(sandbox: Sandbox):
    await sandbox.write_file("link", b"own")
    assert (await sandbox.read_file("calc.py")).startswith(b"def add")
    assert await sandbox.read_file("link") == b"own"


async def test_only_files_that_are_there_are_read(sandbox: Sandbox):
    await sandbox.exec("mkfifo pipe; mkdir folder", timeout_s=20)
    with pytest.raises(MissingFileError):
        await sandbox.read_file("missing")
    with pytest.raises(MissingFileError):
        await sandbox.read_file("missing/file")
    for path in ("pipe", "folder"):
        with pytest.raises(SandboxError):
            await sandbox.read_file(path)
    with pytest.raises(SandboxError):
        await sandbox.write_file("folder", b"x")


async def test_a_file_that_is_too_large_is_refused(sandbox: Sandbox):
    await sandbox.exec("truncate -s 64M large && truncate -s 64M grown && echo x >> grown", timeout_s=20)
    await sandbox.exec("echo x > grown; truncate -s 67108864 grown", timeout_s=20)
    assert len(await sandbox.read_file("large")) == 64 * _MIB


async def test_two_of_one_workspace_do_not_meet(provider: SandboxProvider, workspace: Workspace):
    one, two = await asyncio.gather(*(provider.create(workspace, owner=f"o{i}") for i in range(2)))
    assert one.sandbox_id != two.sandbox_id
    await asyncio.gather(one.write_file("x", b"1"), two.write_file("x", b"2"))
    assert (await one.read_file("x"), await two.read_file("x")) == (b"1", b"2")
    await one.close()
    assert await two.read_file("x") == b"2"


async def test_the_owner_is_in_the_name(sandbox: Sandbox):
    assert "group_one" in sandbox.sandbox_id


async def test_closing_twice_is_fine_and_use_after_it_is_an_error(sandbox: Sandbox):
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true", timeout_s=20)
    with pytest.raises(SandboxError):
        await sandbox.write_file("x", b"")
    with pytest.raises(SandboxError):
        await sandbox.read_file("calc.py")


async def test_closing_ends_a_running_command_with_an_error(sandbox: Sandbox):
    nap = f"96.{os.getpid()}"
    running = asyncio.ensure_future(sandbox.exec(f"sleep {nap}", timeout_s=50))
    await until(lambda: bool(_naps(nap)))
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await running
    await until(lambda: not _naps(nap))


async def test_a_closed_provider_has_closed_all(provider: SandboxProvider, workspace: Workspace, tmp_path: Path):
    sandbox = await provider.create(workspace, owner="x")
    await provider.close()
    with pytest.raises(SandboxError):
        await sandbox.exec("true", timeout_s=20)
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(workspace, owner="y")
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_workspace_that_is_not_there_is_a_sandbox_error(provider: SandboxProvider, tmp_path: Path):
    with pytest.raises(SandboxError, match="x: .*nowhere"):
        await provider.create(Workspace(path=tmp_path / "nowhere"), owner="x")


async def test_programs_of_a_workspace_are_shown_or_refused(
    provider: SandboxProvider, config: SandboxConfig, workspace: Workspace, tmp_path: Path
):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/there").touch()
    owned = replace(workspace, toolchain=Toolchain(tmp_path / "tools", "/opt/tools"))
    if config.isolation is Isolation.bubblewrap:
        sandbox = await provider.create(owned, owner="x")
        assert (await sandbox.exec("ls /opt/tools", timeout_s=20)).output == "there\n"
    else:
        with pytest.raises(UserError, match="x.*its commands need"):
            await provider.create(owned, owner="x")


async def test_a_cancelled_start_leaves_nothing(provider: SandboxProvider, workspace: Workspace):
    starts = [asyncio.ensure_future(provider.create(workspace, owner=f"x{i}")) for i in range(4)]
    await asyncio.sleep(0.05)
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)
    assert isinstance(await provider.create(workspace, owner="after"), object)


async def test_the_door_leads_to_its_session_and_nowhere_else(provider: SandboxProvider, workspace: Workspace):
    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    door = Door("127.0.0.1", server.sockets[0].getsockname()[1], "/sessions/one/secret/v1")
    sandbox = await provider.create(workspace, owner="x", door=door)
    assert sandbox.door_url is not None
    url = urlsplit(sandbox.door_url)
    say = f"printf 'GET {url.path}/models HTTP/1.0\\r\\n\\r\\n' >&3; tail -n 1 <&3"
    for _ in range(2):
        result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{url.port}; {say}", timeout_s=20)
        assert result.output == "ok"
    assert {one.split()[1] for one in heard.requests} == {b"/sessions/one/secret/v1/models"}
    if sandbox.door_url != direct_url(door):  # else the commands share this machine's network
        assert "secret" not in sandbox.door_url
        result = await sandbox.exec(refused_inside(url.port), timeout_s=60)
        assert (len(result.output.split()), set(result.output.split())) == (len(REFUSED), {"404", "400"})
        assert len(heard.requests) == 2
    await sandbox.close()
    server.close()
    without = await provider.create(workspace, owner="y")
    assert without.door_url is None


def _naps(nap: str) -> list[int]:
    """Living `sleep` processes of that length, in whatever namespace."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if nap.encode() in words and words[0].endswith(b"sleep"):
            found.append(int(folder.name))
    return found


async def test_a_commands_time_is_longer_by_what_it_waited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """Whoever runs it says so meanwhile: it outlives its limit by as much, and no more."""
    monkeypatch.setattr(wire, "WAITED_EVERY_S", 0.2)  # a sandbox elsewhere hears so often how long its command waited
    began_s = time.monotonic()
    done = await sandbox.exec("sleep 1; echo done", timeout_s=0.7, waited=lambda: min(6.0, time.monotonic() - began_s))
    assert (done.exit_code, done.timed_out, done.output) == (0, False, "done\n")
    began_s = time.monotonic()
    late = await sandbox.exec("echo said; sleep 60", timeout_s=0.7, waited=lambda: min(0.5, time.monotonic() - began_s))
    assert (late.exit_code, late.timed_out, late.output) == (124, True, "said\n")
    assert 1.0 < time.monotonic() - began_s < 15.0
