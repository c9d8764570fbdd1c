import pytest

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.rollout.trajectory import Status, Trajectory


def trajectory(step, sample):
    return Trajectory(
        f"train.{step}.x.{sample}.0", "x", "g", "train", step, sample, 0, Status.resolved, 1.0, True, True
    ).to_record()


def test_truncate_after_gives_the_folder_as_it_was(tmp_path):
    folder = RunFolder(tmp_path).create()
    with StepLog(folder) as log:
        log.append_trajectories(0, [trajectory(0, 0)], evaluation=True)
        for step in (1, 2, 3):
            log.append_trajectories(step, [trajectory(step, 0)])
            log.append_trajectories(step, [trajectory(step, 1)])
            log.append({"step": step, "loss": 0.1 * step})
        log.append_trajectories(3, [trajectory(3, 0)], evaluation=True)
        log.append_trajectories(4, [trajectory(4, 0)])  # killed in the middle of step 4
        assert log.truncate_after(2) == 1
        log.append({"step": 3, "loss": 9.0})
    assert [(record["step"], record["loss"]) for record in read_jsonl(folder.steps_jsonl)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 9.0),
    ]
    assert sorted(path.name for path in folder.trajectories_folder.iterdir()) == [
        "eval_000000.jsonl",
        "step_000001.jsonl",
        "step_000002.jsonl",
    ]
    assert [record["sample"] for record in read_jsonl(folder.trajectories(2))] == [0, 1]


def test_a_record_needs_its_step(tmp_path):
    with StepLog(RunFolder(tmp_path)) as log, pytest.raises(ValueError, match="step"):
        log.append({"loss": 1.0})
