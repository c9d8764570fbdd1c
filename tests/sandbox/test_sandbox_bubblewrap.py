"""What isolated commands can and cannot reach."""

import asyncio
import os
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox import isolation as isolation_module
from swe_rl.sandbox.bubblewrap import UserMode
from swe_rl.sandbox.interpreter import interpreter_folders
from swe_rl.sandbox.process import ProcessProvider
from swe_rl.sandbox.process_sandbox import ProcessSandbox
from swe_rl.sandbox.protocol import SandboxError, Workspace

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_auto_uses_it_without_a_warning(workspace: Workspace, tmp_path: Path):
    provider = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=pytest.fail)
    assert provider.isolated
    await provider.close()


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/etc/hostname", "/home", "/root/.bashrc", "/root/.ssh", "/work", "/mnt", "/sys", "/boot"]
)
async def test_the_host_is_not_there(isolated: ProcessSandbox, path: str):
    found = (await isolated.exec(f"ls -A {path} 2> /dev/null", timeout_s=10)).output.split()
    assert found == sorted(
        {  # what lies on the way to this Python, wherever it is
            folder.relative_to(path).parts[0] for folder in interpreter_folders() if Path(path) in folder.parents
        }
    )


async def test_the_callers_files_are_not_there(isolated: ProcessSandbox, tmp_path: Path):
    (tmp_path / "private").write_text("private")
    assert (await isolated.exec(f"cat {tmp_path}/private", timeout_s=10)).exit_code != 0
    assert "private" not in (await isolated.exec("ls -R /tmp /root 2>&1 | head -1000", timeout_s=10)).output


async def test_there_is_no_network(isolated: ProcessSandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await isolated.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", timeout_s=10)
    assert result.exit_code != 0 and "connected" not in result.output
    assert (await isolated.exec("cat /proc/net/dev | tail -n +3 | cut -d: -f1", timeout_s=10)).output.strip() == "lo"


async def test_the_network_can_be_asked_for(make, workspace: Workspace):
    sandbox = await make(Isolation.bubblewrap, network=True).create(workspace, owner="x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", timeout_s=10)
    assert result.output == "connected\n"


async def test_nothing_but_the_copy_and_tmp_can_be_written(isolated: ProcessSandbox):
    script = (
        "for d in / /usr /etc /usr/bin /dev /run /var /proc /testbed /tmp; do touch $d/x 2>/dev/null && echo $d; done"
    )
    assert (await isolated.exec(script, timeout_s=10)).output == "/testbed\n/tmp\n"


async def test_only_its_own_processes_are_seen(isolated: ProcessSandbox):
    result = await isolated.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=10)
    assert int(result.output) < 6
    assert (await isolated.exec(f"kill -0 {os.getpid()}", timeout_s=10)).exit_code != 0


async def test_commands_are_not_root_and_have_no_capability(isolated: ProcessSandbox):
    result = await isolated.exec("id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status", timeout_s=10)
    uid, capabilities, no_new_privileges = result.output.split("\n")[:3]
    assert int(uid) != 0
    assert int(capabilities.split()[1], 16) == 0
    assert no_new_privileges.split()[1] == "1"


async def test_a_fork_bomb_stays_small(isolated: ProcessSandbox):
    result = await isolated.exec("for i in $(seq 200); do sleep 3 & done 2>&1 | head -1; jobs | wc -l", timeout_s=2)
    assert "Resource temporarily unavailable" in result.output


async def test_a_link_planted_in_tmp_makes_nothing_outside(isolated: ProcessSandbox, tmp_path: Path):
    for name in ("dev", "root", "pytest"):
        await isolated.exec(
            f"rm -rf /tmp/{name}; mv /tmp/{name} /tmp/aside; ln -s {tmp_path} /tmp/{name}", timeout_s=10
        )
    before = _names(tmp_path)
    assert (await isolated.exec("python -c 'print(1)'", timeout_s=10)).output == "1\n"
    assert _names(tmp_path) == before


async def test_as_a_user_namespace(monkeypatch: pytest.MonkeyPatch, make, workspace: Workspace):
    monkeypatch.setattr(isolation_module, "_modes", lambda host: [UserMode.user_namespace])
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    result = await sandbox.exec("id -un; cat /etc/shadow; touch /x; touch here && python -c 'print(2)'", timeout_s=10)
    assert result.output.startswith("agent\n") and result.output.endswith("2\n") and result.exit_code == 0
    assert "Read-only file system" in result.output


async def test_a_sandbox_that_cannot_be_entered_is_an_error_not_a_result(isolated: ProcessSandbox):
    shutil.rmtree(isolated._folder.work)
    with pytest.raises(SandboxError, match="could not be entered"):
        await isolated.exec("true", timeout_s=10)


async def test_a_command_that_looks_like_a_failing_bubblewrap_is_a_result(isolated: ProcessSandbox):
    assert (await isolated.exec("echo bwrap: failed; exit 1", timeout_s=10)).exit_code == 1


def _processes_of(sandbox: ProcessSandbox) -> list[psutil.Process]:
    """bwrap, the namespace's first process and what it started, as this host numbers them: parents first."""
    [bwrap] = [
        process
        for process in psutil.Process().children()
        if process.name() == "bwrap" and str(sandbox._folder.root) in " ".join(process.cmdline())
    ]
    return [bwrap, *bwrap.children(recursive=True)]


@pytest.mark.parametrize("victim", ["bwrap", "first"])
async def test_a_kill_from_outside_is_no_end_of_the_command(isolated: ProcessSandbox, victim: str):
    """As the host's OOM killer does it: no status of the command's, which would be taken for the policy's doing."""
    task = asyncio.ensure_future(isolated.exec("touch begun; sleep 60", timeout_s=30))
    while not (isolated._folder.work / "begun").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    bwrap, first, *_ = _processes_of(isolated)
    (bwrap if victim == "bwrap" else first).kill()
    with pytest.raises(SandboxError, match="was killed from outside"):
        await task
    assert (await isolated.exec("echo lives", timeout_s=10)).output == "lives\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("{ kill -9 1; kill -9 $PPID; } 2> /dev/null; exit 3", 3),
        ("sleep 9 & kill -9 -1 2> /dev/null; exit 4", 4),
    ],
)
async def test_a_kill_from_inside_is_the_command_s_own(isolated: ProcessSandbox, command: str, status: int):
    result = await isolated.exec(f"echo out; echo err >&2; {command}", timeout_s=10)
    assert (result.exit_code, result.output) == (status, "out\nerr\n")


async def test_mounts_are_seen_where_they_say(workspace: Workspace, tmp_path: Path):
    for name in ("tools", "shared"):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "here").write_text(name)
    mounts = (f"{tmp_path}/tools:/opt/a/tools", f"{tmp_path}/tools:/tmp/b/tools", f"{tmp_path}/shared:/opt/shared:rw")
    provider = ProcessProvider(SandboxConfig(mounts=mounts), tmp_path / "scratch", warn=pytest.fail)
    sandbox = await provider.create(workspace, owner="x")
    script = (
        "cat /opt/a/tools/here /tmp/b/tools/here; for d in /opt/a/tools /tmp/b/tools /opt/shared; do touch $d/x; done"
    )
    result = await sandbox.exec(script, timeout_s=10)
    await provider.close()
    assert result.output.startswith("toolstools") and result.output.count("Read-only file system") == 2
    assert (_names(tmp_path / "tools"), _names(tmp_path / "shared")) == (["here"], ["here", "x"])
