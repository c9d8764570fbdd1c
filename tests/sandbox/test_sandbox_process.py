"""Sandboxes as processes, with real bubblewrap and without isolation."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.sandbox import SandboxError, Workspace
from tests.support.pytest_alone import OPTIONS


def processes_of(word: str) -> list[int]:
    """Live processes with `word` in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def folders(tmp_path: Path, pattern: str) -> list[Path]:
    return list(tmp_path.glob(f"scratch/*/{pattern}"))


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_command_runs_in_a_fresh_copy(sandbox: ProcessSandbox, workspace: Workspace):
    result = await sandbox.exec("pwd; git status --short; ./run.sh; echo changed > calc.py; exit 3", timeout_s=10)
    assert result.exit_code == 3
    assert result.output == f"{sandbox.workdir}\nran\n"
    assert not result.timed_out and result.truncated_bytes == 0 and 0 < result.duration_s < 10
    assert (await sandbox.exec("cat calc.py; readlink link", timeout_s=10)).output == "changed\ncalc.py\n"
    assert workspace.path is not None and "return a - b" in (workspace.path / "calc.py").read_text()


async def test_the_cpu_time_of_commands_is_known_and_waiting_is_none(sandbox: ProcessSandbox):
    """Also of a child that a command waited for. What was stopped counts with its time by the clock."""
    await sandbox.exec("sleep 0.6", timeout_s=10)
    idle_s = sandbox.cpu_s
    burn = "import time\nuntil = time.process_time() + 0.6\nwhile time.process_time() < until: pass"
    await sandbox.exec(f"bash -c \"python3 -c '{burn}'\"", timeout_s=60)
    assert idle_s < 0.4 and 0.6 <= sandbox.cpu_s - idle_s < 3.0
    before_s = sandbox.cpu_s
    assert (await sandbox.exec("sleep 60", timeout_s=0.5)).timed_out
    assert sandbox.cpu_s - before_s > 0.49


async def test_python_and_pytest_are_this_interpreters(sandbox: ProcessSandbox):
    result = await sandbox.exec(
        f"python -m pytest -q -p no:cacheprovider {OPTIONS} test_calc.py; git status --short", timeout_s=60
    )
    assert "1 failed" in result.output
    assert "??" not in result.output  # neither bytecode nor caches in the working copy
    version = await sandbox.exec("python3 -c 'import sys; print(sys.version)'", timeout_s=10)
    assert version.output == f"{sys.version}\n"


async def test_stdin_is_empty_and_streams_are_merged_in_order(sandbox: ProcessSandbox):
    result = await sandbox.exec("cat; echo a; echo b >&2; echo c", timeout_s=10)
    assert (result.exit_code, result.output) == (0, "a\nb\nc\n")


async def test_temporary_files_live_as_long_as_the_sandbox(sandbox: ProcessSandbox):
    await sandbox.exec("echo kept > $TMPDIR/note", timeout_s=10)
    assert (await sandbox.exec("cat ~/note", timeout_s=10)).output == "kept\n"


async def test_the_environment_has_no_secret(sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret-in-the-environment")
    result = await sandbox.exec("env; cat /proc/self/environ /proc/1/environ 2>/dev/null; true", timeout_s=10)
    assert "secret-in-the-environment" not in result.output
    assert "PYTHONHASHSEED=0" in result.output and "LANG=C.UTF-8" in result.output
    assert (await sandbox.exec("echo $EXTRA", timeout_s=10, env={"EXTRA": "given"})).output == "given\n"


async def test_signals_become_128_plus_n(sandbox: ProcessSandbox):
    assert (await sandbox.exec("kill -9 $$", timeout_s=10)).exit_code == 137


@pytest.mark.parametrize(
    "command",
    [
        "sleep 61.25",
        "sleep 61.25 & wait",
        "setsid sleep 61.25 & sleep 61.25",
        "(setsid setsid sleep 61.25 > /dev/null 2>&1 &); sleep 61.25",
        "trap '' TERM INT HUP; while :; do sleep 61.25; done",
        "env -i setsid --wait sleep 61.25",
    ],
)
async def test_a_timeout_kills_the_whole_tree(sandbox: ProcessSandbox, command: str):
    mine = f"61.{os.getpid()}"  # beside us another worker looks for processes of its own
    started = time.monotonic()
    result = await sandbox.exec(f"echo before; {command.replace('61.25', mine)}", timeout_s=0.4)
    assert time.monotonic() - started < 3
    assert result.timed_out and result.exit_code == 124 and result.duration_s == 0.4
    assert result.output == "before\n"
    assert processes_of(f"sleep {mine}") == []


async def test_a_daemon_neither_holds_exec_up_nor_outlives_it(sandbox: ProcessSandbox):
    started = time.monotonic()
    hide = "(env -i setsid sleep 62.25 &)"
    result = await sandbox.exec(
        f"setsid sleep 62.25 & (setsid sleep 62.25 >/dev/null 2>&1 &) ; {hide}; echo on", timeout_s=20
    )
    assert (result.exit_code, result.output, result.timed_out) == (0, "on\n", False)
    assert time.monotonic() - started < 3
    assert processes_of("sleep 62.25") == []


async def test_a_flood_of_output_is_bounded(sandbox: ProcessSandbox):
    before = psutil.Process().memory_info().rss
    result = await sandbox.exec("echo first; yes | head -c 50M; echo last", timeout_s=30, max_output_bytes=10_000)
    assert psutil.Process().memory_info().rss - before < 20 * 2**20
    assert result.exit_code == 0
    assert result.output.startswith("first\ny\n") and result.output.endswith("y\nlast\n")
    assert result.truncated_bytes == 50 * 2**20 + len("first\nlast\n") - 10_000
    assert f"[{result.truncated_bytes} bytes left out]" in result.output
    assert len(result.output) < 10_100


async def test_any_bytes_can_come_out(sandbox: ProcessSandbox):
    result = await sandbox.exec(r"printf '\xff\x00a\x1b[31mred\n'", timeout_s=10)
    assert result.output == "\ufffd\x00a\x1b[31mred\n"


async def test_a_command_that_cannot_be_passed_on_is_a_result_not_an_error(sandbox: ProcessSandbox):
    assert (await sandbox.exec("echo \0", timeout_s=10)).exit_code == 126
    assert "too long" in (await sandbox.exec(": " + "x" * 200_000, timeout_s=10)).output
    assert (await sandbox.exec("echo '\ud800'", timeout_s=10)).output == "?\n"


async def test_resource_limits(sandbox: ProcessSandbox):
    too_much = await sandbox.exec("python -c 'bytearray(3 << 30)'", timeout_s=20)
    assert too_much.exit_code == 1 and "MemoryError" in too_much.output
    large = await sandbox.exec("head -c 100M /dev/zero > large; ls -s --block-size=1M large", timeout_s=20)
    assert "64 large" in large.output


async def test_cancellation_kills_and_is_raised_again(sandbox: ProcessSandbox):
    for wait_s in (0.0, 0.002, 0.005, 0.2):
        task = asyncio.create_task(sandbox.exec("setsid sleep 63.25 & sleep 63.25", timeout_s=30))
        await asyncio.sleep(wait_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert processes_of("sleep 63.25") == []
    assert (await sandbox.exec("echo alive", timeout_s=10)).output == "alive\n"


async def test_closing_leaves_nothing_and_is_idempotent(
    make, isolation: Isolation, workspace: Workspace, tmp_path: Path
):
    provider = make(isolation)
    one, two = [await provider.create(workspace, owner="a/../b c") for _ in range(2)]
    assert one.sandbox_id != two.sandbox_id and "/" not in one.sandbox_id
    running = asyncio.create_task(one.exec("mkdir -p x/y; chmod 0 x; sleep 64.25", timeout_s=30))
    await asyncio.sleep(0.2)
    await one.close()
    await one.close()
    with pytest.raises(SandboxError, match="closed while a command ran"):
        await running
    with pytest.raises(SandboxError, match="is closed"):
        await one.exec("true", timeout_s=1)
    assert processes_of("sleep 64.25") == []
    assert folders(tmp_path, one.sandbox_id) == []
    assert len(folders(tmp_path, two.sandbox_id)) == 1
    await provider.close()
    await provider.close()
    assert folders(tmp_path, "*") == []
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(workspace, owner="late")


async def test_cancelled_creation_leaves_no_folder(make, workspace: Workspace, tmp_path: Path):
    provider = make()
    task = asyncio.create_task(provider.create(workspace, owner="cancelled"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert folders(tmp_path, "cancelled*") == []


async def test_no_descriptor_is_leaked(sandbox: ProcessSandbox):
    await sandbox.exec("true", timeout_s=10)
    before = _open_descriptors()
    for _ in range(5):
        await sandbox.exec("true", timeout_s=10)
        await sandbox.exec("sleep 5", timeout_s=0.05)
        with contextlib.suppress(SandboxError):
            await sandbox.read_file("no/such/file")
    assert _open_descriptors() == before


async def test_waiting_for_a_place_is_not_in_the_timeout(make, workspace: Workspace):
    sandbox = await make(concurrency=1).create(workspace, owner="queue")
    results = await asyncio.gather(*(sandbox.exec("sleep 0.3", timeout_s=0.8) for _ in range(4)))
    assert [result.timed_out for result in results] == [False] * 4
    assert all(0.3 <= result.duration_s < 0.8 for result in results)


async def test_commands_of_one_sandbox_take_turns(sandbox: ProcessSandbox):
    command = "[ ! -e busy ] && touch busy && sleep 0.1 && rm busy"
    results = await asyncio.gather(*(sandbox.exec(command, timeout_s=10) for _ in range(3)))
    assert [result.exit_code for result in results] == [0, 0, 0]


async def test_a_workspace_without_a_folder_is_the_users_mistake(make, tmp_path: Path):
    with pytest.raises(UserError, match="docker or podman"):
        await make().create(Workspace(image="python:3.12"), owner="x")
    with pytest.raises(SandboxError, match="cannot be copied"):
        await make().create(Workspace(path=tmp_path / "missing"), owner="x")


async def test_a_removed_workdir_comes_back_empty(make, workspace: Workspace):
    sandbox = await make().create(workspace, owner="x")
    await sandbox.exec('rm -rf "$PWD"', timeout_s=10)
    assert (await sandbox.exec("ls -A", timeout_s=10)).output == ""


async def test_folders_as_deep_as_a_command_likes_go_away(sandbox: ProcessSandbox, tmp_path: Path):
    dig = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')"
    assert (await sandbox.exec(f'python3 -c "{dig}"', timeout_s=30)).exit_code == 0
    await sandbox.close()
    assert folders(tmp_path, "*/work") == []


async def test_what_cannot_be_removed_spoils_one_sandbox_and_not_the_provider(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", warn=said.append)
    first, second = [await provider.create(workspace, owner=name) for name in ("first", "second")]
    with monkeypatch.context() as stubborn:
        for where in ("working_copy", "base"):
            stubborn.setattr(f"swe_rl.sandbox.{where}.remove_tree", _refuse)
        with pytest.raises(SandboxError, match=r"first-1.* cannot be removed: \[Errno 1\]"):
            await first.close()
        await first.close()  # which is closed all the same
        await provider.close()
    assert sum("second-2 cannot be removed" in text for text in said) == 1
    with pytest.raises(SandboxError, match="closed"):
        await second.exec("true", timeout_s=1)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_who_is_cancelled_hears_nothing_of_what_cannot_be_removed(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    """An error in place of the cancellation would let an attempt go on; one that nobody takes prints a traceback."""
    loop, unheard, begun, let_go = asyncio.get_running_loop(), [], asyncio.Event(), threading.Event()
    loop.set_exception_handler(lambda _, context: unheard.append(context["message"]))
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", warn=lambda _: None)

    def refuse_later(path: Path, **_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        let_go.wait(30)
        _refuse(path)

    async def used() -> None:
        sandbox = await provider.create(workspace, owner="used")
        try:
            if when == "before":
                working.set()
                await asyncio.Event().wait()
        finally:
            await sandbox.close()

    working = asyncio.Event()
    with monkeypatch.context() as stubborn:
        stubborn.setattr("swe_rl.sandbox.base.remove_tree", refuse_later)
        attempt = asyncio.ensure_future(used())
        await (working if when == "before" else begun).wait()
        attempt.cancel()
        if when == "before":
            let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        let_go.set()
        await provider.close()
    del attempt
    gc.collect()
    assert unheard == []


def _refuse(path: Path, **_: object) -> None:
    raise PermissionError(1, "Operation not permitted")
