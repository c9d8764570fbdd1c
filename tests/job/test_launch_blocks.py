"""The order of a sweep's jobs: repeats of arms in blocks, every other one backwards; what they leave is compared."""

import json
import sys
import types

import pytest

from swe_rl.cli import launch
from swe_rl.submission.freeze import FOLDER as FROZEN


def order(*overrides):
    jobs = launch._compose_jobs([*overrides], None)
    return [(job.config.router.name, job.config.job.repeat, job.config.trainer.seed) for job in jobs]


def test_repeats_follow_one_another_in_blocks():
    assert order("router=default,tr", "trainer.seed=3,4,5") == [
        *(("default", 0, 3), ("tr", 0, 3)),
        *(("tr", 0, 4), ("default", 0, 4)),
        *(("default", 0, 5), ("tr", 0, 5)),
    ]
    same_seed = order("job.repeat=0,1", "router=default,tr,cap", "job=rollout")
    assert same_seed == [(name, 0, 0) for name in ("default", "tr", "cap")] + [
        (name, 1, 0) for name in ("cap", "tr", "default")
    ]


def test_what_has_no_repeats_or_one_arm_keeps_its_order():
    assert order("router=tr,default") == [("tr", 0, 0), ("default", 0, 0)]
    assert order("trainer.seed=2,1,0") == [("default", 0, seed) for seed in (2, 1, 0)]


def test_jobs_side_by_side_keep_hydras_order_and_slurms_array_alternates():
    swept = ("router=default,tr", "job.repeat=0,1")
    hydras = [("default", 0, 0), ("default", 1, 0), ("tr", 0, 0), ("tr", 1, 0)]
    assert order(*swept, "hydra/launcher=local_processes") == hydras
    slurm = order(*swept, "hydra/launcher=submitit_slurm", "hardware=cpu", "hardware.partition=cpu")
    assert slurm == [("default", 0, 0), ("tr", 0, 0), ("tr", 1, 0), ("default", 1, 0)]


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Jobs that write two steps and nothing else, in a folder of its own; the overrides of each, in order."""
    ran = []

    def run(config, folder):
        ran.append((folder.name, config.router.name, config.job.repeat))
        rate = 100.0 + 10 * (config.router.name == "tr") + len(ran)
        lines = [{"step": step, "tokens_per_s": rate, "num_trajectories": 4} for step in (1, 2)]
        (folder / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return 1 if config.model.revision == "bad" and len(ran) == 2 else 0

    fake = types.ModuleType("swe_rl.job.rollout")
    fake.run = run
    monkeypatch.setitem(sys.modules, "swe_rl.job.rollout", fake)
    monkeypatch.chdir(tmp_path)
    return ran


@pytest.mark.slow
def test_a_sweep_with_repeats_runs_in_that_order_and_is_compared(started, tmp_path, capsys):
    status = launch.run_command(["--multirun", "job=rollout", "router=default,tr", "job.repeat=0,1"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert started == [("0", "default", 0), ("1", "tr", 0), ("2", "tr", 1), ("3", "default", 1)]
    assert "sweep_same" not in printed.err  # the same again is what was asked for
    assert "(router=default vs router=tr)" in printed.out and "Average (2 runs a side)" in printed.out
    (folder,) = tmp_path.glob("outputs/multirun/rollout/*")
    assert (folder / "compare" / "compare.csv").is_file()
    overrides = (folder / "2" / ".hydra" / "overrides.yaml").read_text()
    assert "router=tr" in overrides and "job.repeat=1" in overrides


def test_a_job_that_fails_does_not_stop_the_others(started, tmp_path):
    sweep = ["--multirun", "job=rollout", "router=default,tr", "job.repeat=0,1", "model.revision=bad"]
    assert launch.run_command([*sweep, "hydra.sweep.dir=sweeps/${name}_${now:%Y}"]) == 1
    assert len(started) == 4
    (folder,) = (tmp_path / "sweeps").iterdir()  # with all that belongs to the sweep
    assert folder.name.startswith("rollout_2") and {"0", "3", FROZEN} <= {path.name for path in folder.iterdir()}
