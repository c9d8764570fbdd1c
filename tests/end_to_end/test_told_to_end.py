"""SIGTERM ends each job within ten seconds, in each of its phases, also where the phase hangs; no process is left."""

import json
import os
import select
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.end_to_end.conftest import SMALL, root_list
from tests.support.waiting import gone

pytestmark = pytest.mark.slow
LONG = pytest.mark.long  # each phase takes a start of its own: the lane `slow` has those that differ most

ENDS_S = 10.0
SPARE_S = 3.0  # this machine is busy with other tests
TRAIN = ("trainer.steps=3", "trainer.checkpoint_every_steps=1")
STREAM = (*TRAIN, "rollout.mode=stream")


@pytest.fixture
def stuck_run(command):
    """Starts a job that gets stuck at a kill point; returns its process once it is."""
    started = []

    def start(job, point, way, *overrides):
        words = (*SMALL, *root_list(command.root), f"paths.outputs={command.outputs}", f"job={job}", *overrides)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stuck", point, way, *words, f"paths.scratch={command.root}/scratch"],
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(command.root / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        wait_for_line(process, f"stuck at {point}")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_line(process, line, timeout_s=180):
    until = time.monotonic() + timeout_s
    said = []
    while time.monotonic() < until and select.select([process.stdout], [], [], until - time.monotonic())[0]:
        said.append(process.stdout.readline())
        if line in said[-1]:
            return
        if not said[-1]:
            break
    raise AssertionError(f"{line!r} was never said: {''.join(said)}{process.stderr.read() if process.poll() else ''}")


def told_to_end(process):
    """Seconds until it had ended; all that it started has, too."""
    below = psutil.Process(process.pid).children(recursive=True)
    sent_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    took_s = time.monotonic() - sent_s
    assert gone(one.pid for one in below)
    assert "Traceback" not in stderr, stderr
    return took_s


def status_of(command, name):
    [folder] = (command.outputs / name).iterdir()
    return folder, json.loads((folder / "status.json").read_text())


@pytest.mark.parametrize("way", ["spin", pytest.param("sleep", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("job", "point", "overrides"),
    [
        pytest.param("train", "status_written", TRAIN, marks=LONG),  # before anything is loaded
        pytest.param("train", "lease_written", TRAIN, marks=LONG),  # an agent's sandbox is made while the model samples
        pytest.param("train", "traces_flushed", STREAM, marks=LONG),  # of an evaluation
        pytest.param("train", "trained", TRAIN, marks=LONG),  # the policy is updated
        ("train", "checkpoint_files", TRAIN),  # half a checkpoint is written
        pytest.param("train", "group_complete", STREAM, marks=LONG),
        pytest.param("train", "trained", STREAM, marks=LONG),
        pytest.param("train", "checkpoint_aside", STREAM, marks=LONG),
        pytest.param("train", "report_written", ("trainer.steps=1",), marks=LONG),  # it is done, and writes down how
        pytest.param("rollout", "programs_written", TRAIN, marks=LONG),
        pytest.param("eval", "traces_flushed", (), marks=LONG),
        pytest.param("sft", "checkpoint_files", ("sft.steps=1", "sft.beginner_steps=0"), marks=LONG),
        ("serve", "status_written", ()),
    ],
)
def test_a_phase_that_hangs(command, stuck_run, job, point, overrides, way):
    if job == "sft":
        overrides = (*overrides, f"sft.output={command.root / 'model'}")
    process = stuck_run(job, point, way, *overrides)
    assert told_to_end(process) < ENDS_S + SPARE_S
    assert process.returncode == 130
    folder, status = status_of(command, job)
    assert (status["status"], status["exit_status"]) == ("interrupted", 130)
    assert "told by SIGTERM to end, and did not within 8 s" in status["reason"]
    assert not command.children()
    for checkpoint in folder.glob("checkpoints/step_*"):
        assert (checkpoint / "manifest.json").is_file(), "half a checkpoint has the name of a whole one"


@pytest.mark.parametrize(
    ("job", "line", "overrides"),
    [
        ("train", "watch", ("trainer.steps=50",)),  # the model is loaded
        pytest.param("train", "generate", ("trainer.steps=50",), marks=LONG),
        pytest.param("train", "step 1/", ("trainer.steps=50", "rollout.mode=stream"), marks=LONG),
        pytest.param("rollout", "generate", ("trainer.steps=50",), marks=LONG),
        pytest.param("eval", "watch", (), marks=LONG),
        pytest.param("sft", "watch", ("sft.steps=500",), marks=LONG),
        ("serve", "stop ", ()),
    ],
)
def test_a_phase_that_goes_on_as_it_should(command, job, line, overrides):
    """It ends by itself, and has saved what there is to save."""
    if job == "sft":
        overrides = (*overrides, f"sft.output={command.root / 'model'}")
    process = command.start(f"job={job}", *overrides, cold=True)
    wait_for_line(process, line)
    assert told_to_end(process) < ENDS_S + SPARE_S
    assert process.returncode == 130
    _, status = status_of(command, job)
    assert (status["status"], status["exit_status"]) == ("interrupted", 130)
    assert not command.children()


def test_what_was_saved_before_is_gone_on_with(command, stuck_run):
    """The step whose checkpoint hangs is done again."""
    told_to_end(stuck_run("train", "checkpoint_named", "spin", *TRAIN))
    resumed = command.run("trainer.resume=auto", *TRAIN)
    assert resumed.exit_status == 0, resumed.text
    assert [step["step"] for step in command.steps()] == [1, 2, 3]
