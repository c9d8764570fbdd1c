"""`LoopWatch`: who keeps the event loop is told from a machine that is busy."""

import asyncio
import os
import signal
import subprocess
import time

import pytest

from swe_rl.extension.conformance import ConformanceError, LoopWatch


async def watch_over(work):
    watch = LoopWatch()
    async with watch:
        await asyncio.sleep(0.1)
        await work()
        await asyncio.sleep(0.1)
    return watch


def test_who_blocks_the_loop_is_refused():
    async def block():
        time.sleep(1.6)  # noqa: ASYNC251

    watch = asyncio.run(watch_over(block))
    with pytest.raises(ConformanceError, match=r"slow: run kept the event loop for 1\.\d s: await what takes long"):
        watch.require_free("slow", "run")


def test_who_awaits_is_free():
    async def wait():
        await asyncio.to_thread(time.sleep, 1.6)

    asyncio.run(watch_over(wait)).require_free("slow", "run")


def test_a_process_that_was_stopped_kept_nobody():
    """A stopped process, like a busy machine, lets neither the loop nor the thread run."""
    started_s = time.monotonic()

    async def be_stopped():
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])  # noqa: ASYNC220
        os.kill(os.getpid(), signal.SIGSTOP)

    watch = asyncio.run(watch_over(be_stopped))
    assert time.monotonic() - started_s > 1.9
    watch.require_free("stopped", "run")
