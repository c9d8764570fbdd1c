"""What containers add: limits, labels, images, and nothing that is left behind."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.container.engine import (
    OWNER,
    PROVIDER,
    RUN,
    ContainerEngine,
    ImageMissingError,
    ProviderIdentity,
    labels_of,
)
from swe_rl.sandbox.container.provider import ContainerProvider
from swe_rl.sandbox.process.seccomp import refused_calls
from swe_rl.sandbox.sandbox import Door, SandboxError, Workspace
from tests.sandbox import host_image
from tests.sandbox.test_sandbox_bubblewrap import _REFUSED_CALLS
from tests.sandbox.test_sandbox_door import Heard
from tests.support.waiting import until

pytestmark = pytest.mark.docker
ProviderOf = Callable[..., ContainerProvider]


@pytest.fixture(params=[SandboxKind.docker, SandboxKind.podman], ids=str)
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def make(kind: SandboxKind, container_config, tmp_path: Path) -> AsyncIterator[ProviderOf]:
    made: list[ContainerProvider] = []

    def factory(warn: Callable[[str], None] = pytest.fail, **changes: object) -> ContainerProvider:
        made.append(ContainerProvider(container_config(kind, **changes), tmp_path / "scratch", warn=warn, run="run-7"))
        return made[-1]

    yield factory
    for provider in made:
        await provider.close()
    await _until_none(made[0].engine.address if made else None)


async def _until_none(address: str | None) -> None:
    """No container of ours is left on the engine."""
    if address is None:
        return
    engine = ContainerEngine(address, threads=1, timeout_s=20)
    for _ in range(100):
        if not (left := await engine.ours()):
            break
        await asyncio.sleep(0.1)
    await engine.close()
    assert left == []


async def test_labels_name_run_and_owner(make: ProviderOf, workspace: Workspace):
    provider = make()
    sandbox = await provider.create(workspace, owner="group/one")
    (listed,) = await provider.engine.ours()
    assert (listed.name, listed.running) == (sandbox.sandbox_id, True)
    assert (listed.labels[RUN], listed.labels[OWNER]) == ("run-7", "group/one")
    assert PROVIDER in listed.labels


async def test_no_network_few_capabilities_and_no_new_privileges(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    result = await sandbox.exec(
        "tail -n +3 /proc/net/dev | cut -d: -f1; grep -E 'CapEff|NoNewPrivs' /proc/self/status", timeout_s=20
    )
    interface, capabilities, privileges = result.output.split("\n")[:3]
    assert interface.strip() == "lo"
    assert int(capabilities.split()[1], 16).bit_count() == 7
    assert privileges.split()[1] == "1"


@pytest.mark.parametrize("user", [0, 65534], ids=["root", "ordinary"])
async def test_refused_calls_are_refused_and_programs_work(make: ProviderOf, workspace: Workspace, user: int):
    """As in process sandboxes: the same table, the same script."""
    sandbox = await make().create(workspace, owner="x")
    await sandbox.write_file("refused.py", f"import os\nos.setuid({user})\n{_REFUSED_CALLS}".encode())
    answers = (await sandbox.exec(f"python3 refused.py '{json.dumps(refused_calls())}'", timeout_s=60)).output
    assert json.loads(answers.splitlines()[0]) == dict.fromkeys(refused_calls(), "EPERM")
    families = (
        "import socket\nfor family in range(48):\n    try:\n        socket.socket(family, socket.SOCK_DGRAM).close()\n"
        "        print(family, end=' ')\n    except OSError:\n        pass\n"
    )
    await sandbox.write_file("families.py", families.encode())
    assert (await sandbox.exec("python3 families.py", timeout_s=60)).output.split() == ["1", "2", "10", "16"]
    works = (
        'python3 -c \'import threading, subprocess; subprocess.run(["git", "--version"], check=True)\' && echo works'
    )
    assert (await sandbox.exec(works, timeout_s=60)).output.endswith("works\n")


async def test_commands_have_the_variables_of_the_image_but_for_those_that_every_sandbox_sets(
    make: ProviderOf, kind: SandboxKind, engine_addresses: Callable[[SandboxKind], str]
):
    """As the `ENV` lines of a Harbor task's Dockerfile leave them."""
    image = host_image.load(engine_addresses(kind), "localhost/swe_rl_variables:1", ("FLAVOUR=lemon", "PAGER=more"))
    sandbox = await make().create(Workspace(image=image, workdir="/testbed"), owner="x")
    said = await sandbox.exec("echo $FLAVOUR $PAGER; bash -c 'echo $FLAVOUR'", timeout_s=20)
    assert said.output == "lemon cat\nlemon\n"
    given = await sandbox.exec("echo $FLAVOUR", timeout_s=20, env={"FLAVOUR": "lime"})
    assert given.output == "lime\n"


async def test_memory_ends_the_command_and_not_the_sandbox(make: ProviderOf, workspace: Workspace):
    sandbox = await make(memory_gb=0.125).create(workspace, owner="x")
    result = await sandbox.exec("python3 -c 'x = b\"1\" * (400 << 20)'", timeout_s=60)
    assert result.exit_code == 137
    assert (await sandbox.exec("echo again", timeout_s=20)).output == "again\n"


async def test_a_fork_bomb_stays_inside_and_ends(make: ProviderOf, workspace: Workspace):
    sandbox = await make(max_processes=40).create(workspace, owner="x")
    result = await sandbox.exec(":(){ :|:& };: ; sleep 100", timeout_s=1)
    assert result.timed_out
    assert (await sandbox.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=20)).output.strip() in ("4", "5", "6")


async def test_a_file_beyond_its_limit_cannot_be_written(make: ProviderOf, workspace: Workspace):
    sandbox = await make(max_file_mb=2).create(workspace, owner="x")
    result = await sandbox.exec("head -c 3000000 /dev/zero > big; stat -c %s big", timeout_s=20)
    assert result.output.endswith(f"{2 << 20}\n")


async def test_commands_that_kill_all_they_see_end_only_themselves(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    for command in ("kill -9 -1", "pkill bash", "kill -9 1; kill -TERM 1; kill -HUP 1; kill -PIPE 1", "kill -STOP -1"):
        await sandbox.exec(command, timeout_s=3)
        assert (await sandbox.exec("echo again", timeout_s=20)).output == "again\n", command


async def test_commands_that_silence_the_guard_are_only_late(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    others = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -%s $p; done; sleep 60"
    silencing = [others % "KILL", others % "STOP", "kill -STOP -1; kill -STOP $$", "cat /proc/1/fd/3"]
    for command in silencing:
        assert (await sandbox.exec(command, timeout_s=0.5)).timed_out, command
        assert (await sandbox.exec("echo again", timeout_s=20)).output == "again\n", command


async def test_what_commands_say_to_the_guard_is_not_heard(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    for command in ("echo gone > /proc/1/fd/4", "echo 'run 0123456789abcdef0 / sleep\\04060' > /proc/1/fd/3"):
        assert (await sandbox.exec(f"{command}; exit 3", timeout_s=5)).exit_code == 3, command
        assert (await sandbox.exec("echo again", timeout_s=5)).output == "again\n", command


async def test_a_container_that_is_killed_from_outside_is_a_broken_sandbox(make: ProviderOf, workspace: Workspace):
    provider = make()
    sandbox = await provider.create(workspace, owner="x")
    running = asyncio.ensure_future(sandbox.exec("echo working; sleep 60", timeout_s=60))
    await asyncio.sleep(1)
    for _ in range(3):  # podman is still ending it, then removing it, then it is gone
        await provider.engine.signal(sandbox.sandbox_id, "SIGKILL")
    with pytest.raises(SandboxError, match="working"):
        await running


async def test_a_command_without_its_workdir_gets_a_new_one(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    await sandbox.exec("cd /; rm -rf /testbed", timeout_s=20)
    assert (await sandbox.exec("pwd; ls", timeout_s=20)).output == "/testbed\n"


async def test_much_output_is_read_in_bounded_memory(make: ProviderOf, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    result = await sandbox.exec("yes | head -c 300000000", timeout_s=100, max_output_bytes=1000)
    assert result.truncated_bytes == 300_000_000 - 1000


async def test_an_image_of_its_own_workdir(make: ProviderOf):
    provider = make()
    sandbox = await provider.create(Workspace(image="localhost/swe_rl-test:host", workdir="/opt/work"), owner="x")
    assert (await sandbox.exec("pwd; id -u", timeout_s=20)).output == "/opt/work\n0\n"


async def test_a_missing_image_names_instance_image_and_way_out(make: ProviderOf):
    provider = make()
    with pytest.raises(ImageMissingError, match=r"django-1: .*no/such:image.*sandbox\.pull"):
        await provider.create(Workspace(image="localhost/no/such:image"), owner="django-1")
    assert await provider.engine.ours() == []


async def test_a_folder_needs_a_base_image(make: ProviderOf, workspace: Workspace):
    with pytest.raises(UserError, match=r"sandbox\.image"):
        await make(image=None).create(workspace, owner="x")


async def test_a_container_that_is_removed_is_a_broken_sandbox(make: ProviderOf, workspace: Workspace):
    provider = make()
    sandbox = await provider.create(workspace, owner="x")
    running = asyncio.ensure_future(sandbox.exec("echo working; sleep 60", timeout_s=60))
    await asyncio.sleep(0.5)
    await provider.engine.remove(sandbox.sandbox_id)
    with pytest.raises(SandboxError, match="working"):
        await running
    with pytest.raises(SandboxError, match="gone"):
        await sandbox.exec("true", timeout_s=20)
    with pytest.raises(SandboxError):
        await sandbox.read_file("calc.py")
    await sandbox.close()


async def test_more_than_concurrency_wait(make: ProviderOf, workspace: Workspace):
    provider = make(concurrency=1)
    one = await provider.create(workspace, owner="one")
    waiting = asyncio.ensure_future(provider.create(workspace, owner="two"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await one.close()
    await (await waiting).close()


async def test_warm_ones_are_handed_out_under_their_owners_name(make: ProviderOf, workspace: Workspace):
    provider = make(warm_pool=2)
    first = await provider.create(workspace, owner="first")
    for _ in range(100):
        if provider.warm == 2:
            break
        await asyncio.sleep(0.1)
    started_s = time.monotonic()
    second = await provider.create(workspace, owner="second")
    assert "second" in second.sandbox_id and time.monotonic() - started_s < 1
    assert second.sandbox_id in [one.name for one in await provider.engine.ours()]
    assert (await second.exec("cat calc.py | wc -l; git status --short", timeout_s=20)).output == "2\n"
    await asyncio.gather(first.close(), second.close())


async def test_a_warm_one_that_died_is_not_handed_out(make: ProviderOf, workspace: Workspace):
    provider = make(warm_pool=1)
    await provider.create(workspace, owner="first")
    for _ in range(100):
        if provider.warm == 1:
            break
        await asyncio.sleep(0.1)
    (warm,) = [one for one in await provider.engine.ours() if one.labels[OWNER] == "warm"]
    await provider.engine.remove(warm.container_id)
    await asyncio.sleep(0.2)
    second = await provider.create(workspace, owner="second")
    assert (await second.exec("echo alive", timeout_s=20)).output == "alive\n"


async def test_a_disk_limit_that_the_engine_cannot_give_is_said_once(make: ProviderOf, workspace: Workspace):
    said: list[str] = []
    provider = make(warn=said.append, disk_gb=1.0)
    for owner in ("x", "y"):
        sandbox = await provider.create(workspace, owner=owner)
        assert (await sandbox.exec("echo up", timeout_s=20)).output == "up\n"
    assert len(said) <= 1


async def test_what_a_gone_run_left_is_removed_by_the_next(make: ProviderOf, workspace: Workspace):
    provider = make()
    dead = ProviderIdentity("other", "old-run", ProcessIdentity(socket.gethostname(), _gone_process()))
    options = {"host_options": {"network_mode": "none"}, "labels": labels_of(dead, "x", time.time() + 1000)}
    left = await provider.engine.create("localhost/swe_rl-test:host", ["bash"], "swe_rl-left-over", **options)
    foreign = await provider.engine.create(
        "localhost/swe_rl-test:host", ["bash"], "not_ours", host_options={"network_mode": "none"}
    )
    try:
        await provider.create(workspace, owner="x")
        assert left not in [one.container_id for one in await provider.engine.ours()]
        await provider.engine.call(lambda client: client.inspect_container(foreign))
    finally:
        await provider.engine.remove(foreign)


_RUN = """
import asyncio, json, sys
from pathlib import Path
from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.container.provider import ContainerProvider
from swe_rl.sandbox.sandbox import Door, Workspace

async def main():
    given = json.loads(sys.argv[1])
    given["kind"] = SandboxKind(given["kind"])
    given["mounts"] = tuple(given["mounts"])
    provider = ContainerProvider(SandboxConfig(**given), Path(sys.argv[2]), warn=print)
    try:
        made = [
            await provider.create(Workspace(path=Path(sys.argv[3])), owner=str(i), door=Door("127.0.0.1", 1, "/v1"))
            for i in range(2)
        ]
        Path(sys.argv[2], "up").touch()
        if sys.argv[4] == "fail":
            raise RuntimeError("a bug")
        await made[0].exec("sleep 95.5", timeout_s=90)
    finally:
        if sys.argv[4] != "leave":
            await provider.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["fail", "interrupt", "kill", "leave"])
async def test_a_run_leaves_nothing_however_it_ends(
    kind: SandboxKind, container_config, workspace: Workspace, tmp_path: Path, end: str
):
    config: SandboxConfig = container_config(kind, warm_pool=1)
    given = {name: getattr(config, name) for name in ("kind", "host", "image", "mounts", "warm_pool", "concurrency")}
    scratch = tmp_path / "run"
    argv = [sys.executable, "-c", _RUN, json.dumps(given), str(scratch), str(workspace.path), end]
    run = _start(argv)
    await until(lambda: (scratch / "up").exists() or run.poll() is not None, 30.0)
    if end == "interrupt":
        run.send_signal(signal.SIGINT)
    elif end in ("kill", "leave"):
        run.send_signal(signal.SIGKILL)
    await asyncio.to_thread(run.wait)
    await _until_none(config.host)
    (scratch / "up").unlink()
    await until(lambda: not list(scratch.iterdir()), 30.0)
    await until(lambda: not _processes_with(str(scratch)), 30.0)
    assert not _mounts_below(str(scratch))


def _processes_with(text: str) -> list[str]:
    """Pids of others whose command line has `text`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (folder / "cmdline").read_bytes() and folder.name != str(os.getpid()):
                found.append(folder.name)
    return found


def _mounts_below(folder: str) -> bool:
    return folder in Path("/proc/self/mounts").read_text()


def _gone_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def _start(argv: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, cwd=Path.cwd(), stderr=subprocess.DEVNULL)


async def test_a_silent_run_loses_its_containers(make: ProviderOf, workspace: Workspace, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.container.guard._BEATS_IN_A_LEASE", 0.001)
    provider = make(lease_s=1.0)
    sandbox = await provider.create(workspace, owner="x")
    with pytest.raises(SandboxError):
        await sandbox.exec("sleep 30", timeout_s=30)


async def test_a_run_that_beats_keeps_them(make: ProviderOf, workspace: Workspace):
    sandbox = await make(lease_s=1.0).create(workspace, owner="x")
    assert (await sandbox.exec("sleep 3; echo kept", timeout_s=30)).output == "kept\n"
    await asyncio.sleep(2.5)
    assert (await sandbox.exec("echo kept", timeout_s=30)).output == "kept\n"


async def test_no_engine_is_the_users_error(tmp_path: Path):
    with pytest.raises(UserError, match="nothing.sock"):
        config = SandboxConfig(kind=SandboxKind.docker, host=f"unix://{tmp_path}/nothing.sock")
        ContainerProvider(config, tmp_path / "scratch", warn=pytest.fail)


async def test_a_door_by_python_and_by_node(make: ProviderOf, workspace: Workspace):
    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sandbox = await make(memory_gb=4.0).create(workspace, owner="x", door=Door("127.0.0.1", port, "/sessions/a/b/v1"))
    get = "GET /v1/models HTTP/1.0\\r\\n\\r\\n"
    say = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{get}' >&3; tail -n 1 <&3"
    assert (await sandbox.exec(say, timeout_s=20)).output == "ok"
    if (await sandbox.exec("command -v node", timeout_s=20)).exit_code == 0:
        other = f"node /run/swe_rl/door.js 18099 /run/swe_rl/door.sock && {say.replace(str(port), '18099')}"
        assert (await sandbox.exec(other, timeout_s=20)).output == "ok"
    assert {one.split()[1] for one in heard.requests} == {b"/sessions/a/b/v1/models"}
    assert (await sandbox.exec("touch /run/swe_rl/x", timeout_s=20)).exit_code != 0
    server.close()
