"""The main job, for real, from the command line."""

import json
import signal
import time

import pytest

from tests.end_to_end.conftest import FEW, PER_STEP

TIMES = ("_s", "per_s")


def without_times(steps: list[dict]) -> list[dict]:
    return [{key: value for key, value in step.items() if not key.endswith(TIMES)} for step in steps]


def test_a_run_leaves_everything_behind(command):
    """With as few steps and attempts as show everything: `finished`, which tests of the lane `slow` read, has more."""
    per_step = 2
    done = command.run("trainer.steps=2", "rollout.prompts_per_step=1", f"rollout.n={per_step}", cold=True)
    assert done.exit_status == 0, done.text
    folder = command.folder()
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("report:") and str(folder / "report.html").endswith(f"/{last.split()[-1]}")
    for name in ("config.yaml", "plan.json", "events.jsonl", "traces.db", "summary.json", "run.log", ".hydra"):
        assert (folder / name).exists(), name
    steps = command.steps()
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["num_trajectories"] == per_step == sum(step["statuses"].values())
        assert step["prefix_breaks"] == 0
        expected = step["num_trajectories"] * step["avg_response_length"] / step["generate_s"]
        assert step["tokens_per_s"] == pytest.approx(expected)
        assert step["weight_version"] == step["step"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["resolved_samples_before"] == summary["resolved_samples_after"] == 2
    assert json.loads((folder / "status.json").read_text())["status"] == "done"
    trajectories = command.read(folder / "trajectories" / "step_000001.jsonl")
    assert len(trajectories) == per_step and all(one["turns"] for one in trajectories)
    assert {one["reward"] for one in trajectories} <= {0.0, 1.0}
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(command, finished):
    process = command.start("trainer.resume=auto")
    command.wait_for_checkpoint(process, 1)
    time.sleep(0.4)  # in the middle of step 2
    process.kill()
    process.communicate()
    resumed = command.run("trainer.resume=auto")
    assert resumed.exit_status == 0, resumed.text
    assert "continues after step" in resumed.text
    ours, theirs = without_times(command.steps()), without_times(finished.steps())
    assert len(ours) == 3
    for one, two in zip(ours, theirs, strict=True):
        for key in ("loss", "grad_norm", "entropy", "reward_mean"):
            assert one[key] == pytest.approx(two[key], abs=1e-6), (one["step"], key)
        assert one["statuses"] == two["statuses"]
        assert one["avg_response_length"] == two["avg_response_length"]
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_saves_and_stops_everything(command, sent):
    process = command.start("trainer.steps=50", "trainer.checkpoint_every_steps=0", cold=sent is signal.SIGINT)
    command.wait_for_step(process, 1)
    time.sleep(0.3)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    folder = command.folder()
    assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"
    done = len(command.steps())
    assert (folder / "checkpoints" / f"step_{done:06d}" / "manifest.json").is_file()
    assert (folder / "report.html").is_file()
    assert not command.children()
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_retokenize_reports_its_mismatch(command):
    done = command.run("rollout.capture=retokenize", "trainer.steps=1", *FEW)
    assert done.exit_status == 0, done.text
    [step] = command.steps()
    for key in ("mismatch_trajectory_rate", "mismatch_turn_rate", "mismatch_token_rate"):
        assert 0.0 <= step[key] <= 1.0
    assert step["prefix_breaks"] == 0 and step["kl_rollout"] is None


@pytest.mark.slow
def test_rollout_and_eval_jobs(command):
    rollout = command.run("job=rollout", "trainer.steps=1", cold=True)
    assert rollout.exit_status == 0, rollout.text
    [step] = command.steps("rollout")
    assert step["num_trajectories"] == PER_STEP and "loss" not in step
    evaluated = command.run("job=eval")
    assert evaluated.exit_status == 0, evaluated.text
    predictions = command.read(command.folder("eval") / "predictions.jsonl")
    assert len(predictions) == 2 and set(predictions[0]) == {"instance_id", "model_name_or_path", "model_patch"}
