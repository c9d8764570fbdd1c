"""Runs' folders and logs as measurements; what is neither is refused in one paragraph."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from swe_rl.logger.folder import RunState
from swe_rl.logger.summary import write_summary
from swe_rl.report.compare.read import CompareError, is_run, read_measured, runs_below

LOGS = Path(__file__).parent / "skyrl_logs"


def read(path, trajectories_per_step=396):
    return read_measured(Path(path), "job.baseline", trajectories_per_step)


def test_a_run(make_run):
    folder = make_run(steps=3)
    (folder.path / ".hydra").mkdir()
    (folder.path / ".hydra" / "overrides.yaml").write_text(
        "- router=tr\n- +experiment=x\n- ++trainer.steps='6'\n- ~wandb\n"
    )
    run = read(folder.path)
    lines = [json.loads(line) for line in folder.steps_jsonl.read_text().splitlines()]
    assert [run.steps[step].tokens_per_s for step in (1, 2, 3)] == [line["tokens_per_s"] for line in lines]
    assert run.steps[2].reward_mean == lines[1]["reward_mean"] and run.steps[2].step_s == lines[1]["step_s"]
    assert (run.num_trajectories, run.wall_s, run.status, run.is_log, run.job) == (64, 48.0, "done", False, None)
    assert run.overrides == {"router": "tr", "experiment": "x", "trainer.steps": "6", "wandb": ""}
    assert (run.value("router"), run.value("trainer.steps"), run.value("trainer.nothing")) == ("default", 15, None)


def test_incomplete_steps_are_left_out_and_the_last_line_of_a_step_counts(make_run):
    folder = make_run(steps=2)
    with folder.steps_jsonl.open("a") as file:
        file.write('{"step": 2, "tokens_per_s": 7, "num_trajectories": 8}\n')
        file.write('{"step": 3, "tokens_per_s": NaN}\n{"step": 4}\n{"step": 5, "tokens_per_s": "8"}\n')
        file.write('{"step": "6", "tokens_per_s": 8}\n{"step": 7, "tokens_pe')
    run = read(folder.path)
    assert sorted(run.steps) == [1, 2] and run.steps[2].tokens_per_s == 7 and run.steps[2].reward_mean is None
    assert run.incomplete == 3 and run.num_trajectories is None


@pytest.mark.parametrize("state", [RunState.failed, RunState.interrupted, RunState.requeued])
def test_a_run_that_ended_early_has_no_wall_time(make_run, state):
    """It would be the faster arm by all that it did not do."""
    folder = make_run(steps=2, state=state)
    write_summary(folder, wall_s=3.0)
    assert read(folder.path).wall_s is None and len(read(folder.path).steps) == 2


def test_a_run_under_way_gives_what_it_has(make_run):
    folder = make_run(steps=1, state=RunState.running)
    run = read(folder.path)
    assert list(run.steps) == [1] and run.status == "running" and run.wall_s is None
    write_summary(folder, wall_s=3.0)
    folder.config_yaml.write_text("{broken")
    assert read(folder.path).wall_s is None, "of an earlier start"
    assert read(folder.path).values == {}
    folder.steps_jsonl.unlink()
    assert read(folder.path).steps == {}


def test_a_log():
    run = read(LOGS / "slurm-25609.err")
    assert run.is_log and run.job == "25609" and run.incomplete == 1 and run.num_trajectories == 396
    assert list(run.steps) == [1, 2, 3, 4, 5, 6, 7] and run.steps[1].tokens_per_s == pytest.approx(1222.7, abs=1e-4)
    halved = read(LOGS / "slurm-25609.err", 198)
    assert halved.steps[1].tokens_per_s == pytest.approx(611.35, abs=1e-4)


def test_a_log_of_another_name(tmp_path):
    shutil.copy(LOGS / "slurm-25609.err", tmp_path / "trainer.log")
    assert read(tmp_path / "trainer.log").job == "trainer"


def test_runs_below_a_multirun_come_by_number(make_run, tmp_path):
    for name in ("10", "9", "1", "odd"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        (tmp_path / "sweep" / name / "steps.jsonl").touch()
    (tmp_path / "sweep" / "frozen").mkdir()
    assert [path.name for path in runs_below(tmp_path / "sweep")] == ["1", "9", "10", "odd"]
    assert is_run(make_run().path) and not is_run(tmp_path)


def test_folders_that_one_may_not_enter_have_no_runs(tmp_path, monkeypatch):
    """The refusal is made up: tests may run as root, who may read everything."""
    for name in ("0", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").touch()
    real = os.lstat

    def refusing(path, **named):
        if Path(path).parent == tmp_path / "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **named)

    monkeypatch.setattr(os, "lstat", refusing)
    assert runs_below(tmp_path) == [tmp_path / "0"]


def test_what_cannot_be_compared_is_refused_with_a_way_out(tmp_path, make_run):
    with pytest.raises(CompareError, match=r"job.baseline=.*/gone does not exist. Give a run's folder"):
        read(tmp_path / "gone")
    with pytest.raises(CompareError, match="is not the folder of a run: it has no steps.jsonl. Give"):
        read(tmp_path)
    shutil.copy(LOGS / "slurm-25609.err", tmp_path)
    with pytest.raises(CompareError, match=r"It has logs: give one of them, for instance .*slurm-25609.err"):
        read(tmp_path)
    run = make_run(steps=1).path
    with pytest.raises(CompareError, match=rf"job.runs={run.parent}"):
        read(run.parent)
    with pytest.raises(CompareError, match="no line has Started: 'step'"):
        read(run / "config.yaml")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 50)
    with pytest.raises(CompareError, match="is no log of SkyRL's"):
        read(tmp_path / "noise")
    assert CompareError.exit_status == 2
