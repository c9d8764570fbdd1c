"""A job's loop: uvloop where it is there, and Ctrl-C ends the job's coroutine in order."""

import asyncio
import os
import signal
import sys

import pytest

from swe_rl.run import event_loop


async def kind():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_where_it_is_installed():
    pytest.importorskip("uvloop")
    assert event_loop.run(kind()) == "uvloop"


def test_without_it_asyncio_s_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.run(kind()) == "asyncio"


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
        event_loop.run(work())
    assert ended == [True]
