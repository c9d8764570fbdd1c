"""The start of a training over servers of its own and two ranks, which come up side by side; and what ends in it."""

import json
import os
import shlex
import signal
import sys
import time

import psutil
import pytest

from swe_rl.plan.sizes import VLLM_COMMAND
from swe_rl.sandbox.lease import reap_stale
from tests.end_to_end.conftest import FEW, ranks_of
from tests.support.waiting import alive, gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TWO = ("engine=vllm", "layout=local2", "trainer.steps=1", "trainer.check_weights=false", *FEW)
NEVER_S = 600.0


@pytest.fixture
def fake(monkeypatch):
    def use(**settings):
        monkeypatch.setenv(VLLM_COMMAND, f"{shlex.quote(sys.executable)} -m swe_rl.engine.fake_vllm.server")
        monkeypatch.setenv("FAKE_VLLM", json.dumps({"vocab_size": 1536, **settings}))

    return use


def both_start(command, process):
    """All processes of a run whose server and ranks are starting: the server, the ranks, whatever is above them."""
    until = time.monotonic() + 240
    while True:
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise AssertionError(process.communicate())
        servers, ranks = command.servers(process), ranks_of(process.pid)
        if servers and len(ranks) == 2:
            return servers[0], ranks, psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.02)


def nothing_stays(command, processes):
    assert gone(processes)
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


def status_of(command):
    return json.loads((command.folder() / "status.json").read_text())["status"]


def test_both_come_up_side_by_side(command, fake):
    fake(start_delay_s=1.0)
    done = command.run(*TWO)
    assert done.exit_status == 0, done.text
    lines = command.log().splitlines()
    at = {
        what: next(place for place, line in enumerate(lines) if what in line)
        for what in (
            "Started: 'start_trainer'",
            "Started: 'start_engines'",
            "Finished: 'start_trainer'",
            "Finished: 'start_engines'",
        )
    }
    started = max(place for what, place in at.items() if what.startswith("Started"))
    assert started < min(place for what, place in at.items() if what.startswith("Finished"))
    for said in ("engine0 starts on the CPU", "trainer starts: 2 ranks on the CPU", "engine0 is up", "trainer is up"):
        assert said in done.stdout
    nothing_stays(command, [])


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        ("engine", "Engine `engine0` was ended by SIGKILL from outside"),
        ("rank", "Rank 1 of 2 of the trainer failed: it ended during its start by SIGKILL"),
    ],
)
def test_one_that_is_killed_ends_the_other(command, fake, victim, said):
    fake(start_delay_s=NEVER_S)
    process = command.start(*TWO)
    server, ranks, processes = both_start(command, process)
    (server if victim == "engine" else ranks[1]).kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1 and said in stderr and "Traceback" not in stderr, stderr
    assert status_of(command) == "failed"
    nothing_stays(command, processes)


def test_a_server_that_fails_by_itself_ends_the_ranks(command, fake):
    fake(die_at_start=3, start_log="RuntimeError: of its own")
    done = command.run(*TWO)
    assert done.exit_status == 1 and "Engine `engine0` ended with status 3: RuntimeError: of its own" in done.stderr
    assert "Traceback" not in done.stderr and "Rank " not in done.stderr, done.stderr
    nothing_stays(command, [])


def test_ctrl_c(command, fake):
    fake(start_delay_s=NEVER_S)
    process = command.start(*TWO)
    _, _, processes = both_start(command, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the ranks get it, too
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    assert status_of(command) == "interrupted"
    nothing_stays(command, processes)


def test_a_killed_driver(command, fake):
    """Servers and ranks end by themselves; the next run removes what was leased."""
    fake(start_delay_s=NEVER_S)
    process = command.start(*TWO)
    _, _, processes = both_start(command, process)
    process.kill()
    process.communicate(timeout=60)
    assert gone(processes) and not any(map(alive, processes))
    for root in (command.root / "scratch").glob("swe_rl-*"):
        assert reap_stale(root)
    nothing_stays(command, processes)
