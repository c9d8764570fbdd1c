"""The start of a training over servers of its own and two ranks, which come up side by side; and what ends in it."""

import contextlib
import json
import os
import shlex
import signal
import sys
import time

import psutil
import pytest

from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.sandbox.lease import reap_stale
from tests.end_to_end.conftest import FEW, ranks_of
from tests.support import dying_server
from tests.support.waiting import alive, gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TWO = ("engine=vllm", "layout=local2", "trainer.steps=1", "trainer.check_weights=false", *FEW)
WARM_START = ("job=sft", "layout.trainer_ranks=2", "sft.steps=2", "sft.beginner_steps=1")
NEVER_S = 600.0


@pytest.fixture
def fake(monkeypatch):
    def use(**settings):
        monkeypatch.setenv(VLLM_COMMAND, f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server")
        monkeypatch.setenv("FAKE_VLLM", json.dumps({"vocab_size": 1536, **settings}))

    return use


def started(process, look):
    """What `look` sees of a run that starts, as soon as it is something."""
    until = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < until:
        if seen := look():
            return seen
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())


def below(process):
    return psutil.Process(process.pid).children(recursive=True)


def fork_server(process):
    """Whether it has begun: not any other child, such as nvidia-smi."""
    for one in below(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "fork_server" in " ".join(one.cmdline()):
                return True
    return False


def one_suspended(process):
    """Of two ranks the second, as soon as they are there."""
    if len(ranks := ranks_of(process.pid)) < 2:
        return False
    ranks[1].suspend()
    return True


def both_start(command, process):
    """All processes of a run whose server and ranks are starting: the server, the ranks, whatever is above them."""

    def look():
        servers, ranks = command.servers(process), ranks_of(process.pid)
        return (servers[0], ranks, below(process)) if servers and len(ranks) == 2 else None

    return started(process, look)


def nothing_stays(command, processes):
    assert gone(processes)
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


def status_of(command, job="train"):
    return json.loads((command.folder(job) / "status.json").read_text())["status"]


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


def test_a_server_that_dies_while_a_lost_rank_is_replaced_is_started_again(command, fake, monkeypatch):
    """The first start of a run is another matter: see the test before."""
    fake()
    deaths = command.root / "deaths"
    deaths.mkdir()
    monkeypatch.setenv(VLLM_COMMAND, shlex.join([sys.executable, dying_server.__file__, str(deaths)]))
    process = command.start(*TWO, "trainer.steps=3", "trainer.max_restarts=1")
    command.wait_for_step(process, 1)
    (deaths / "start").touch()
    ranks_of(process.pid)[1].kill()
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0 and "Traceback" not in stderr, stdout + stderr
    assert "ended with status 3" in stdout and "restart 1 of 3" in stdout
    events = [event["event"] for event in command.read(command.folder() / "events.jsonl")]
    story = [event for event in events if event in ("engine_lost", "engine_back", "trainer_restart")]
    assert story == ["engine_lost", "engine_back", "trainer_restart"]
    assert [step["step"] for step in command.steps()] == [1, 2, 3]
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


@pytest.mark.parametrize(("moment", "sent"), [("imports", signal.SIGTERM), ("ranks", signal.SIGINT)])
def test_a_warm_start_whose_ranks_start(command, moment, sent):
    """Interrupted while libraries are imported for its ranks, or while a rank that hangs builds its part."""
    output = command.root / "model"
    process = command.start(*WARM_START, f"sft.output={output}", small=False, cold=moment == "imports")
    started(process, lambda: fork_server(process) if moment == "imports" else one_suspended(process))
    processes = below(process)
    os.killpg(process.pid, sent)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    assert "trainer starts: 2 ranks" in stdout and "trainer is up" not in stdout
    assert status_of(command, "sft") == "interrupted"
    assert not output.exists() and not list(command.root.glob(".*"))
    nothing_stays(command, processes)
