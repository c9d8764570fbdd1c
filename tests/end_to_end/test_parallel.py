"""The trainer of many ranks from the command line: the same run, whatever is killed, on any number of ranks."""

import json
import os
import re
import signal
import time

import pytest

from swe_rl.files.kill_point import VARIABLE
from tests.end_to_end.conftest import FEW, ranks_of
from tests.support.waiting import gone, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

REPLICAS = ("layout=local", "layout.trainer_ranks=4", "layout.shard_ranks=2", "trainer.collective_timeout_s=120")
TWO = ("layout=local2", "trainer.collective_timeout_s=120")


def trajectories(command, name="train"):
    """What was sampled and what came of it, without times."""
    kept = ("trajectory_id", "status", "reward", "sampled_tokens")
    files = sorted((command.folder(name) / "trajectories").glob("step_*.jsonl"))
    found = [one for file in files for one in command.read(file)]
    return [({key: one[key] for key in kept}, [turn["message"] for turn in one["turns"]]) for one in found]


def assert_same_run(ours, theirs):
    one, two = ours.steps(), theirs.steps()
    assert len(one) == len(two) > 0
    for mine, other in zip(one, two, strict=True):
        for key in ("loss", "grad_norm", "entropy"):
            assert mine[key] == pytest.approx(other[key], abs=1e-5), (mine["step"], key)
        for key in ("reward_mean", "statuses", "avg_response_length", "trained_tokens"):
            assert mine[key] == other[key], (mine["step"], key)
    assert trajectories(ours) == trajectories(theirs)


@pytest.fixture
def alone(finished):
    """The same run in one process."""
    return finished


def killed_after_a_checkpoint(command, ranks, *overrides):
    """A run whose rank 0 is killed at the first checkpoint that it has named: all others, and the run, end of that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "checkpoint_named")
        process = command.start(*overrides, "trainer.resume=auto")
    wait_until(lambda: process.poll() is not None or len(ranks_of(process.pid)) == ranks, timeout_s=240)
    found = ranks_of(process.pid)
    _, stderr = process.communicate(timeout=400)
    assert process.returncode == 1 and f"Rank 0 of {ranks} of the trainer failed: it ended" in stderr, stderr
    assert gone(found) and not command.children()


def test_replicas_are_killed_two_ranks_go_on_are_killed_and_one_process_goes_on(command, alone):
    """Also the bytes of the checkpoints: four ranks write together what two, and one process, write."""
    killed_after_a_checkpoint(command, 4, *REPLICAS)
    of_replicas = stored_bytes(min((command.folder() / "checkpoints").glob("step_*")))
    assert of_replicas == stored_bytes(alone.folder() / "checkpoints" / "step_000003")
    killed_after_a_checkpoint(command, 2, *TWO)
    resumed = command.run("trainer.resume=auto")
    assert resumed.exit_status == 0, resumed.text
    assert re.findall(r"continues after step (\d+)", command.log()) == ["1", "2"]
    assert_same_run(command, alone)
    assert not command.children()


def stored_bytes(checkpoint):
    """Of all tensors, without the headers of their files."""
    total = 0
    for path in checkpoint.glob("shard_*.safetensors"):
        header = int.from_bytes(path.read_bytes()[:8], "little")
        total += path.stat().st_size - 8 - header
    return total


def test_two_ranks_are_one_process(command, alone):
    done = command.run(*TWO, cold=True)
    assert done.exit_status == 0, done.text
    assert_same_run(command, alone)
    folder = command.folder()
    assert (folder / "checkpoints" / "step_000003" / "shards.json").is_file()
    checks = [event for event in command.read(folder / "events.jsonl") if event["event"] == "weights"]
    assert [event["step"] for event in checks] == [0, 1, 2, 3]
    assert all(event["logprob_diff_mean"] < 1e-4 for event in checks)
    assert [(folder / "trainer" / f"rank{rank}.log").read_text() for rank in (0, 1)] == ["", ""]
    assert not any(word in done.stderr for word in ("Traceback", "TCPStore", "leaked", "Heartbeat"))

    evaluated = command.run("job=eval", f"model.path={folder}")
    assert evaluated.exit_status == 0, evaluated.text
    assert "exporting step_" in evaluated.stdout
    [made] = (folder / "exports").iterdir()
    assert made.name.startswith("step_000003-")
    assert f"model.path={folder}" in evaluated.stdout
    [event] = command.read(command.folder("eval") / "evals.jsonl")
    assert event["num_samples"] == 2


def kill_rank(command, process, after_step):
    command.wait_for_step(process, after_step, timeout_s=400)
    ranks = ranks_of(process.pid)
    os.kill(ranks[1].pid, signal.SIGKILL)
    return ranks


def test_a_killed_rank_is_started_again_and_the_run_is_the_same(command, alone):
    """The newest checkpoint may be of step 1: that of step 2 is still being written when the rank is killed."""
    process = command.start(*TWO, "trainer.max_restarts=1")
    ranks = kill_rank(command, process, 2)
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stdout + stderr
    assert "rank 1 is lost (it ended " in stdout and "restart 1 of 1" in stdout and "continues after step" in stdout
    assert_same_run(command, alone)
    assert gone(ranks) and not command.children() and "Traceback" not in stderr
    folder = command.folder()
    [event] = [one for one in command.read(folder / "events.jsonl") if one["event"] == "trainer_restart"]
    assert event["restart"] == 1 and event["rank"] == 1 and "SIGKILL" in event["reason"]
    assert event["step"] in (1, 2) and event["lost_s"] > 0
    assert json.loads((folder / "summary.json").read_text())["trainer_restarts"] == 1
    assert json.loads((folder / "status.json").read_text())["status"] == "done"


def test_the_last_restart_is_the_last(command):
    """The first rank dies before there is a checkpoint: the run begins anew. The second one ends it with its name."""
    words = (*FEW, "trainer.max_restarts=1", "trainer.steps=50", "trainer.checkpoint_every_steps=40")
    process = command.start(*TWO, *words)
    first = kill_rank(command, process, 1)
    assert gone(first)
    events = command.folder() / "events.jsonl"
    until = time.monotonic() + 240
    while "trainer_restart" not in events.read_text():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    second = kill_rank(command, process, 1)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    assert "Rank 1 of 2 of the trainer failed: it ended" in stderr and "by SIGKILL" in stderr
    assert stdout.count("restart 1 of 1") == 1 and "Traceback" not in stderr
    assert gone(second) and not command.children() and not {one.pid for one in first} & {one.pid for one in second}
    [event] = [one for one in command.read(events) if one["event"] == "trainer_restart"]
    assert event["step"] == 0
    summary = json.loads((command.folder() / "summary.json").read_text())
    assert summary["trainer_restarts"] == 1
    status = json.loads((command.folder() / "status.json").read_text())
    assert status["status"] == "failed" and status["exit_status"] == 1 and "Rank 1 of 2" in status["reason"]


def test_sampling_a_step_ahead_until_ctrl_c_which_saves_a_checkpoint_of_the_ranks(command):
    """The trainer's ranks learn step k while step k + 1 is sampled, with the weights of step k - 1."""
    ahead = ("trainer.max_staleness_steps=1", "algo.correction=token_tis")
    process = command.start(*TWO, *ahead, "trainer.steps=50", "trainer.checkpoint_every_steps=0")
    command.wait_for_step(process, 3, timeout_s=400)
    ranks = ranks_of(process.pid)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the ranks get it, too
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    folder = command.folder()
    done = len(command.steps())
    assert (folder / "checkpoints" / f"step_{done:06d}" / "shards.json").is_file()
    assert gone(ranks) and not command.children()
    assert "Traceback" not in stderr

    records = command.steps()[:3]
    assert [one["step"] for one in records] == [1, 2, 3]
    ages = [one["staleness_mean"] for one in records]
    assert ages[0] == 0 and set(ages[1:]) <= {1, None} and 1 in ages
    started = {}
    for line in command.log().splitlines():
        for name in ("generate", "train"):
            for what in ("Started", "Finished"):
                if f"{what}: '{name}'" in line:
                    started.setdefault((what, name), []).append(line[:23])
    assert started["Started", "generate"][1] < started["Finished", "train"][0]  # the second step's, the first one's
