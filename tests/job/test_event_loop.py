"""A job's loop: uvloop where it is there, and Ctrl-C ends the job's coroutine in order."""

import asyncio
import os
import signal
import sys

import pytest

from swe_rl.run import event_loop
from tests.support.waiting import until


async def kind():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_where_it_is_installed():
    pytest.importorskip("uvloop")
    assert event_loop.run_job(kind()) == "uvloop"


def test_without_it_asyncio_s_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.run_job(kind()) == "asyncio"


@pytest.mark.parametrize("installed", [True, False])
def test_ctrl_c_cancels_the_work(monkeypatch, installed):
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    ended = []

    async def work():
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        event_loop.run_job(work())
    assert ended == [True]


class Part:
    """Ends as `end` says once it may, and takes three turns of the loop to end where it is cancelled."""

    def __init__(self, end=None):
        self.end, self.may_end, self.ended = end, asyncio.Event(), None

    async def run(self):
        try:
            await self.may_end.wait()
            if isinstance(self.end, Exception):
                raise self.end
            self.ended = "itself"
            return self.end
        except asyncio.CancelledError:
            for _ in range(3):
                await asyncio.sleep(0)
            self.ended = "cancelled"
            if isinstance(self.end, Exception):
                raise self.end from None
            raise


async def test_two_at_the_same_time():
    work, beside = Part("made"), Part("beside")
    both = asyncio.ensure_future(event_loop.run_together(work.run(), beside.run()))
    work.may_end.set()
    await until(lambda: work.ended)
    assert not both.done()
    beside.may_end.set()
    assert await both == "made" and beside.ended == "itself"


@pytest.mark.parametrize("first", ["work", "beside"])
async def test_the_first_error_ends_the_other_one(first):
    parts = {"work": Part(OSError("work")), "beside": Part(OSError("beside"))}
    both = asyncio.ensure_future(event_loop.run_together(*(part.run() for part in parts.values())))
    parts.pop(first).may_end.set()
    with pytest.raises(OSError, match=first):
        await both
    [other] = parts.values()
    assert other.ended == "cancelled"


async def test_an_interruption_ends_both_whatever_they_then_say():
    work, beside = Part(OSError("work")), Part()
    both = asyncio.ensure_future(event_loop.run_together(work.run(), beside.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both.cancel()
    await asyncio.sleep(0)
    both.cancel()  # again, in the middle of the end
    with pytest.raises(asyncio.CancelledError):
        await both
    assert work.ended == beside.ended == "cancelled"
