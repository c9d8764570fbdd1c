"""A server is lost by its own silence, never by ours."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from swe_rl.engine.engine import SamplingParams
from swe_rl.engine.server import monitor as http_monitor
from swe_rl.engine.server.client import HttpClient, ServerAnswer, SilentError, UnreachableError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.server.monitor import REFUSED_S, SILENT_S, TICK_S, LoopLag, Monitor, MonitorCallbacks
from swe_rl.host.addresses import free_port
from tests.engine.test_engine_http import until


class Clock:
    """Seconds that a test lets pass, by turns of the loop or by a stall."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def stall(self, seconds):
        self.now_s += seconds

    def run(self, lag, seconds):
        """The loop turns as it should."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            lag.beat()


class Punctual(LoopLag):
    """For a clock that is not the loop's."""

    def total_s(self):
        return 0.0


class Silent:
    """A client whose server does not answer."""

    url = "http://engine"

    def __init__(self):
        self.error = SilentError("no answer")

    async def get(self, path, *, timeout_s=None):
        if self.error is not None:
            raise self.error
        return ServerAnswer(200, b"")


@pytest.fixture
def watched():
    clock, client, lost = Clock(), Silent(), []
    lag = LoopLag(clock)
    watcher = MonitorCallbacks(lost=lost.append, back=lambda: lost.append("back"), restarted=lambda: None)
    return clock, client, lost, lag, Monitor(client, watcher, clock=clock, lag=lag)


def test_lag_is_what_the_loop_was_late_also_while_it_is():
    clock = Clock()
    lag = LoopLag(clock)
    clock.run(lag, 10.0)
    assert lag.total_s() == pytest.approx(0.0)
    clock.stall(7.0)
    assert lag.total_s() == pytest.approx(7.0 - TICK_S)  # seen by whoever runs before the next beat
    lag.beat()
    clock.run(lag, 5.0)
    assert lag.total_s() == pytest.approx(7.0 - TICK_S)


@pytest.mark.parametrize("error", [SilentError("no answer"), UnreachableError("refused")])
async def test_a_stall_of_the_loop_is_no_silence_of_the_server(watched, error):
    clock, client, lost, lag, monitor = watched
    client.error = error
    clock.stall(SILENT_S + 30.0)
    await monitor.look()  # its time limit passed while nothing here ran
    lag.beat()
    await monitor.look()
    assert lost == []
    client.error = None
    await monitor.look()
    assert lost == []


@pytest.mark.parametrize(("error", "limit_s"), [(SilentError("no"), SILENT_S), (UnreachableError("no"), REFUSED_S)])
@pytest.mark.parametrize("stalls_s", [0.0, 40.0])
async def test_a_silent_server_is_found_in_time_whatever_the_loop_did(watched, error, limit_s, stalls_s):
    clock, client, lost, lag, monitor = watched
    client.error = error
    clock.stall(stalls_s)
    lag.beat()
    clock.run(lag, limit_s - 1.0)
    await monitor.look()
    assert lost == []
    clock.run(lag, 1.5)
    await monitor.look()
    assert lost == [str(error)]


async def test_what_was_late_before_the_last_answer_buys_a_server_nothing(watched):
    clock, client, lost, lag, monitor = watched
    clock.stall(500.0)
    lag.beat()
    client.error = None
    await monitor.look()
    client.error = SilentError("no answer")
    clock.run(lag, SILENT_S + 0.5)
    await monitor.look()
    assert lost == ["no answer"]


async def test_a_look_that_goes_wrong_is_said_and_a_later_one_still_finds_the_loss(caplog):
    """A monitor that ends is a server that is never lost: requests would be sent to it for ever."""
    clock, client, lost = Clock(), Silent(), asyncio.Event()
    client.error = None
    answers = [ValueError("what is this?"), UnreachableError("refused"), UnreachableError("refused")]

    async def get(path, *, timeout_s=None):
        clock.now_s += REFUSED_S
        raise answers.pop(0) if len(answers) > 1 else answers[0]

    client.get = get
    watcher = MonitorCallbacks(lost=lambda _: lost.set(), back=lambda: None, restarted=lambda: None)
    monitor = Monitor(client, watcher, clock=clock, period_s=0.001, lag=Punctual(clock))
    monitor.start()
    await asyncio.wait_for(lost.wait(), 20)
    await monitor.close()
    assert "what is this?" in caplog.text


@pytest.mark.slow
async def test_a_server_of_flesh_outlives_our_stall_and_is_lost_by_its_own(monkeypatch):
    """A process of its own, the real clock, a loop that stands still for longer than a silence may last."""
    monkeypatch.setattr(http_monitor, "SILENT_S", 1.0)
    monkeypatch.setattr(http_monitor, "_LOOK_TIMEOUT_S", 0.3)
    port = free_port()
    program = [sys.executable, "-m", "tests.support.fake_vllm.server", "--model", "policy", "--port", str(port)]
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    client = HttpClient(f"http://127.0.0.1:{port}", tries=8)
    engine = HttpEngine(client, Needs("policy", 4096), name="e", max_num_seqs=8, stats_period_s=0.05)
    changes = []
    engine.on_change = changes.append
    try:
        await engine.start()
        server.send_signal(signal.SIGSTOP)  # a look is under way, and its limit passes while nothing here runs
        await until(lambda: engine._monitor._looking.locked())
        time.sleep(2.5)  # noqa: ASYNC251 - that is the fault
        server.send_signal(signal.SIGCONT)
        completion = await engine.generate([1, 2, 3], SamplingParams(4), request_id="r")
        assert len(completion.token_ids) == 4 and changes == []
        server.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        await until(lambda: changes == [False], 10.0)
        assert 0.9 < time.monotonic() - began_s < 8.0
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.kill()
        server.wait()
        await engine.close()
