"""Snapshots, resets and forks of each kind of sandbox, and what is left of them."""

import asyncio
import functools
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.container.engine import PROVIDER, ProviderIdentity
from swe_rl.sandbox.container.snapshots import ContainerSnapshots, list_images
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.process import snapshots as snapshots_module
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxError, SandboxProvider, Workspace
from swe_rl.sandbox.snapshot_conformance import check_snapshots
from tests.sandbox.test_sandbox_conformance import config, provider  # noqa: F401 - fixtures
from tests.sandbox.test_sandbox_overlay import SEEN_AS, is_shared, mode, prepared  # noqa: F401 - fixtures

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


async def test_every_kind_forks_or_refuses(provider: SandboxProvider, config: SandboxConfig, workspace: Workspace):  # noqa: F811
    assert await check_snapshots(provider, workspace) == (config.kind is not SandboxKind.apptainer)


@needs_bwrap
async def test_overlays_are_layers(make, prepared: Workspace, mode: object):  # noqa: F811
    assert await check_snapshots(make(Isolation.bubblewrap), prepared)


async def test_times_are_kept_to_the_last_digit(make, workspace: Workspace):
    made = make(Isolation.none)
    sandbox = await made.create(workspace, owner="one")
    await sandbox.exec("touch -d '2001-02-03T04:05:06.123456789' calc.py package", timeout_s=20)
    snapshot = await sandbox.snapshot()
    await sandbox.exec("touch calc.py package/new", timeout_s=20)
    await sandbox.reset(snapshot)
    fork = await made.fork(snapshot, owner="two")
    for one in (sandbox, fork):
        seen = (await one.exec("stat -c %y calc.py package", timeout_s=20)).output
        assert seen.count("06.123456789") == 2


@needs_bwrap
async def test_a_layer_is_there_as_long_as_somebody_needs_it(make, prepared: Workspace, tmp_path: Path):  # noqa: F811
    made = make(Isolation.bubblewrap)
    parent = await made.create(prepared, owner="parent")
    script = f"echo one > one; rm -rf package; mkdir package; echo tool > {SEEN_AS}/new; rm calc.py"
    await parent.exec(script, timeout_s=20)
    snapshot = await parent.snapshot()
    layers = [layer.folder for stack in parent._folder.stacks for layer in stack.layers[:-1]]
    assert len(layers) == 2 and all(layer.is_dir() for layer in layers)
    fork = await made.fork(snapshot, owner="fork")
    assert is_shared(fork) and fork._folder.uid != parent._folder.uid
    seen = await fork.exec(f"cat one {SEEN_AS}/new; ls package calc.py; stat -c %U one | sort -u", timeout_s=20)
    assert seen.output.splitlines()[:2] == ["one", "tool"] and "No such file" in seen.output
    await made.drop(snapshot)
    await parent.close()
    assert all(layer.is_dir() for layer in layers)
    await fork.close()
    assert not list((tmp_path / "scratch").glob("*/snapshot-*"))


@needs_bwrap
@pytest.mark.parametrize("why", ["hard link", "many layers"])
async def test_what_a_layer_would_show_otherwise_is_copied(
    make,
    prepared: Workspace,  # noqa: F811
    mode: object,  # noqa: F811
    why: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """A file with two names is one file in a fork, too: who writes to the one sees it in the other."""
    if why == "many layers":
        monkeypatch.setattr(snapshots_module, "_MOST_LAYERS", 2)
    made = make(Isolation.bubblewrap)
    parent = await made.create(prepared, owner="parent")
    for number in range(4):
        script = f"echo {number} > n{number}; rm -rf package; mkdir package; touch package/m{number}"
        await parent.exec(f"{script}; {'ln n0 hard' if why == 'hard link' and not number else ''}", timeout_s=20)
        snapshot = await parent.snapshot()
    assert len(parent._folder.stacks[0].layers) <= (2 if why == "many layers" else 4)
    fork = await made.fork(snapshot, owner="fork")
    assert (await fork.exec("cat n*; ls package", timeout_s=20)).output == "0\n1\n2\n3\nm3\n"
    if why == "hard link":
        assert (await fork.exec("echo more >> n0; cat hard", timeout_s=20)).output == "0\nmore\n"
    await fork.exec("rm -rf n* package", timeout_s=20)
    await fork.reset(snapshot)
    assert (await fork.exec("cat n*; ls package", timeout_s=20)).output == "0\n1\n2\n3\nm3\n"


@needs_bwrap
async def test_a_doorway_outlives_a_reset(make, prepared: Workspace):  # noqa: F811
    from swe_rl.sandbox.sandbox import Door
    from tests.sandbox.test_sandbox_door import Heard

    heard = Heard()
    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    door = Door("127.0.0.1", server.sockets[0].getsockname()[1], "/sessions/one/secret/v1")
    made = make(Isolation.bubblewrap)
    parent = await made.create(prepared, owner="parent", door=door)
    snapshot = await parent.snapshot()
    await parent.reset(snapshot)
    fork = await made.fork(snapshot, owner="fork", door=door)
    for sandbox in (parent, fork):
        assert sandbox.door_url is not None
        port = sandbox.door_url.split(":")[2].split("/")[0]
        say = "printf 'GET /v1/models HTTP/1.0\\r\\n\\r\\n' >&3; tail -n 1 <&3"
        assert (await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}; {say}", timeout_s=20)).output == "ok"
    server.close()


async def test_a_snapshot_waits_for_the_command_that_runs(make, workspace: Workspace):
    sandbox = await make(Isolation.none).create(workspace, owner="busy")
    running = asyncio.ensure_future(sandbox.exec("echo a > made; sleep 0.7; echo b >> made", timeout_s=20))
    await asyncio.sleep(0.2)
    snapshot = await sandbox.snapshot()
    assert running.done()
    await sandbox.exec("rm made", timeout_s=20)
    await sandbox.reset(snapshot)
    assert await sandbox.read_file("made") == b"a\nb\n"


@needs_bwrap
async def test_a_snapshot_of_another_workspace_is_refused(make, workspace: Workspace):
    made = make(Isolation.bubblewrap)
    sandbox = await made.create(workspace, owner="one")
    other = await made.create(workspace, owner="two")
    elsewhere = await made.create(replace(workspace, places=("/elsewhere",)), owner="three")
    snapshot = await sandbox.snapshot()
    await other.reset(snapshot)  # Its workspace is the same one.
    with pytest.raises(SandboxError, match="another workspace"):
        await elsewhere.reset(snapshot)
    await made.drop(snapshot)
    with pytest.raises(SandboxError, match="dropped"):
        await other.reset(snapshot)
    assert (await other.exec("echo fine", timeout_s=20)).output == "fine\n"


@needs_bwrap
async def test_a_reset_that_fails_breaks_one_sandbox(
    make,
    prepared: Workspace,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    made = make(Isolation.bubblewrap)
    sandbox = await made.create(prepared, owner="one")
    snapshot = await sandbox.snapshot()

    def refuse(*_: object) -> None:
        raise OSError("no overlay can be mounted: refused")

    with monkeypatch.context() as patch:
        patch.setattr(made._mounter, "mount", refuse)
        with pytest.raises(SandboxError, match="refused"):
            await sandbox.reset(snapshot)
        with pytest.raises(SandboxError, match="refused"):
            await made.fork(snapshot, owner="two")
    with pytest.raises(SandboxError, match="broken"):
        await sandbox.exec("true", timeout_s=20)
    assert (await (await made.fork(snapshot, owner="three")).exec("echo fine", timeout_s=20)).output == "fine\n"
    await sandbox.close()


async def test_a_snapshot_whose_caller_is_gone_is_not_kept(make, workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    """As with a sandbox server whose client hangs up: nobody has the name, so nobody could ever drop it."""
    made = make(Isolation.none)
    sandbox = await made.create(workspace, owner="one")
    began = threading.Event()
    copy_besides = snapshots_module._copy_besides

    def copy_slowly(*given: Path) -> None:
        began.set()
        time.sleep(0.1)
        copy_besides(*given)

    monkeypatch.setattr(snapshots_module, "_copy_besides", copy_slowly)
    taking = asyncio.create_task(sandbox.snapshot())
    await asyncio.to_thread(began.wait)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert made._snapshots._kept == {} and not [*made._snapshots._folder.glob("snapshot-*")]
    assert (await sandbox.exec("echo fine", timeout_s=20)).output == "fine\n"


async def test_a_sandbox_is_broken_also_where_nobody_waits_for_its_reset(make, workspace, monkeypatch):
    made = make(Isolation.none)
    sandbox = await made.create(workspace, owner="one")
    snapshot = await sandbox.snapshot()
    began = threading.Event()

    def fail(*_: object) -> None:
        began.set()
        time.sleep(0.1)
        raise OSError("No space left on device")

    monkeypatch.setattr(made._snapshots, "_fill", fail)
    going = asyncio.create_task(sandbox.reset(snapshot))
    await asyncio.to_thread(began.wait)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    with pytest.raises(SandboxError, match="No space left"):
        await sandbox.exec("true", timeout_s=20)


async def test_an_image_that_may_have_been_made_is_removed_later():
    """An engine that answers too late has made the image of a snapshot that nobody knows."""
    requests = pytest.importorskip("requests")
    pytest.importorskip("docker")

    class SlowEngine:
        removed: list[str] = []

        async def call(self, action):
            if isinstance(action, functools.partial):
                self.removed.append(action.keywords["image"])
                return True
            raise requests.exceptions.ReadTimeout("no answer")

    engine = SlowEngine()
    snapshots = ContainerSnapshots(engine, ProviderIdentity.mine("provider", "run"))
    with pytest.raises(SandboxError, match="no answer"):
        await snapshots.take("0123456789abcdef", "/testbed")
    await snapshots.close()
    assert engine.removed == ["localhost/swe_rl-snapshot:provider-1"]


@needs_bwrap
async def test_a_mounter_that_was_killed_is_replaced(make, prepared: Workspace):  # noqa: F811
    made = make(Isolation.bubblewrap)
    await made.create(prepared, owner="one")
    assert made._mounter._process is not None
    made._mounter._process.kill()
    made._mounter._process.wait()
    assert is_shared(await made.create(prepared, owner="two"))


_KILLED = """
import asyncio, sys
from pathlib import Path
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Toolchain, Workspace

async def main(scratch, tree, tools):
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.bubblewrap), scratch, warn=print)
    workspace = Workspace(path=tree, toolchain=Toolchain(tools, "/opt/tools"))
    parent = await provider.create(workspace, owner="parent")
    await parent.exec("echo x > made", timeout_s=60)
    fork = await provider.fork(await parent.snapshot(), owner="fork")
    print(provider._mounter._process.pid, flush=True)
    await fork.exec("sleep 63.5", timeout_s=60)

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


@needs_bwrap
def test_a_killed_run_leaves_no_snapshot_and_no_process(prepared: Workspace, tmp_path: Path):  # noqa: F811
    assert prepared.path is not None and prepared.toolchain is not None
    scratch = tmp_path / "scratch"
    words = [sys.executable, "-c", _KILLED, str(scratch), str(prepared.path), str(prepared.toolchain.folder)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    mounter = int(run.stdout.readline())
    assert list(scratch.glob("*/snapshot-1/upper-work/made"))
    run.send_signal(signal.SIGKILL)
    run.wait()
    limit_s = time.monotonic() + 20
    while Path(f"/proc/{mounter}").exists() and time.monotonic() < limit_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{mounter}").exists()
    assert reap_stale(scratch) and list(scratch.iterdir()) == []


@pytest.mark.docker
@pytest.mark.parametrize("kind", [SandboxKind.docker, SandboxKind.podman])
async def test_an_image_is_there_as_long_as_somebody_needs_it(
    container_config, kind, workspace: Workspace, tmp_path: Path
):
    pytest.importorskip("docker", reason="needs the extra docker")
    from docker import APIClient

    made = make_provider(container_config(kind), tmp_path / "scratch", warn=pytest.fail)
    parent = await made.create(workspace, owner="parent")
    snapshot = await parent.snapshot()
    fork = await made.fork(snapshot, owner="fork")
    label = f"{PROVIDER}={made._identity.provider}"  # type: ignore[attr-defined]
    client = APIClient(made.engine.address)  # type: ignore[attr-defined]
    assert len(list_images(client, label)) == 1
    await made.drop(snapshot)
    assert (await fork.exec("cat calc.py", timeout_s=20)).exit_code == 0
    await fork.close()
    assert list_images(client, label) == []
    await parent.snapshot()
    await made.close()
    assert list_images(client, label) == []
