import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from swe_rl.sandbox.base import HeadTail
from swe_rl.sandbox.command import CommandSpec, _exit_of, run_command
from tests.support.waiting import until


def is_zombie(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # reaped between the two questions
        return False


def _uvloop():
    return pytest.importorskip("uvloop").new_event_loop()


@pytest.fixture(params=[asyncio.SelectorEventLoop, _uvloop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a loop of that kind; nothing that it opened is open, and no child left, afterwards."""

    def runs(main):
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.sleep(0))
            before = open_files()
            found = runner.run(main)
            runner.run(asyncio.sleep(0.01))  # a loop may close its own handles a round later
            assert open_files() == before
        assert not [one for one in psutil.Process().children() if is_zombie(one)]
        return found

    return runs


def open_files():
    """Number -> what it is, so that one closed and another opened in its place is seen."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[int(link.name)] = str(link.readlink())
        except OSError:
            continue  # the listing's own
    return found


async def bash(command, tmp_path, *, timeout_s=20.0, limit_bytes=65536):
    output = HeadTail(limit_bytes)
    spec = CommandSpec(["bash", "-c", command], {"PATH": os.environ["PATH"]}, tmp_path, timeout_s)
    status = await run_command(spec, output, lambda pid: None)
    return status, output


def test_output_and_status(run, tmp_path):
    status, output = run(bash("echo out; echo err >&2; exit 3", tmp_path))
    assert (status, output.text()) == (3, "out\nerr\n")


def test_a_command_that_cannot_start_leaves_nothing_open(run, tmp_path):
    async def main():
        for _ in range(20):
            with pytest.raises(FileNotFoundError):
                await run_command(CommandSpec(["/no/such/program"], {}, tmp_path, 1.0), HeadTail(9), print)

    run(main())


def test_more_output_than_a_pipe_holds(run, tmp_path):
    status, output = run(bash("head -c 3000000 /dev/zero | tr '\\0' x", tmp_path, limit_bytes=1000))
    assert status == 0 and output.truncated_bytes == 2_999_000


def test_a_timeout_and_a_cancellation_kill(run, tmp_path):
    async def main():
        status, output = await bash("echo begun; sleep 60", tmp_path, timeout_s=0.3)
        assert (status, output.text()) == (None, "begun\n")
        task = asyncio.ensure_future(bash("sleep 60", tmp_path))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_second_cancellation_does_not_cut_the_end_short(run, tmp_path):
    sweeps, swept = threading.Event(), threading.Event()

    def sweep(pid):
        sweeps.set()
        swept.wait(20)

    async def main():
        spec = CommandSpec(["sleep", "60"], {"PATH": os.environ["PATH"]}, tmp_path, 20.0)
        task = asyncio.ensure_future(run_command(spec, HeadTail(9), sweep))
        await asyncio.sleep(0)
        task.cancel()
        assert await asyncio.to_thread(sweeps.wait, 20)
        task.cancel()
        assert not (await asyncio.wait({task}, timeout=0.05))[0]
        swept.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_killed_command_tells_its_signal(run, tmp_path):
    assert run(bash("kill -9 $$", tmp_path))[0] == -signal.SIGKILL


def test_who_keeps_the_output_open_cannot_hold_it_up(run, tmp_path, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.command._DRAIN_S", 0.1)
    status, output = run(bash("setsid sleep 3 & echo done", tmp_path))
    assert (status, output.text()) == (0, "done\n")


@contextmanager
def watched_descriptors(count):
    """Files that nobody here touches: a descriptor closed twice hits one of them sooner or later."""
    files = [os.open(sys.executable, os.O_RDONLY) for _ in range(count)]
    before = [os.fstat(one) for one in files]
    try:
        yield
        assert [os.fstat(one) for one in files] == before
    finally:
        for one in files:
            os.close(one)


def test_many_commands_share_descriptors_without_mixing_them_up(run, tmp_path):
    """Numbers are used again at once: whoever closes one a second time takes it from somebody else."""

    async def one(number):
        for turn in range(6):
            status, output = await bash(f"echo {number}.{turn}; exit {turn}", tmp_path)
            assert (status, output.text()) == (turn, f"{number}.{turn}\n")
            opened = os.open(sys.executable, os.O_RDONLY)
            await asyncio.sleep(0)
            os.fstat(opened)
            os.close(opened)

    async def main():
        with watched_descriptors(8):
            await asyncio.gather(*(one(number) for number in range(32)))

    run(main())


async def test_the_end_of_a_command_that_nobody_waits_for_any_more_is_no_error():
    """As where a loop ends: it cancels whoever waits, and the process ends a moment later."""
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
    _exit_of(process).cancel()
    process.kill()
    await until(lambda: process.returncode is not None)
    await asyncio.sleep(0)
    assert unheard == []
