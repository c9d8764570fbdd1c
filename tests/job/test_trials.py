"""A sweeper that decides as it goes, with the real Optuna: what it gets back, what it may not start, what is left."""

import json
import sys
import types

import pytest

from swe_rl.cli import launch
from swe_rl.cli.trials import read_trials

# Not slow, but the lane whose environment has Optuna.
pytestmark = pytest.mark.slow

SECRET = "qz7-never-on-disk"
OPTUNA = (
    "--multirun",
    "hydra/sweeper=optuna",
    "hydra.sweeper.direction=maximize",
    "hydra.sweeper.n_jobs=1",
)
MEASURED = (*OPTUNA, "job.objective=resolved_rate_after")
GRID = (*MEASURED, "hydra/sweeper/sampler=grid")


@pytest.fixture(autouse=True)
def optuna():
    """Its log would go to the stream of the first test that imported it."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra optuna is not installed")
    library = pytest.importorskip("optuna")
    library.logging.disable_default_handler()
    return library


@pytest.fixture
def started(tmp_path, monkeypatch):
    """job=train that says how good its learning rate is; the rates that were started."""
    ran = []

    def run(config, folder):
        ran.append(config.trainer.lr)
        assert len(config.hardware.env_vars.get("HF_TOKEN", SECRET)) == len(SECRET)
        rate = None if config.model.revision == "unmeasured" else 1 - abs(config.trainer.lr - 0.02)
        (folder / "summary.json").write_text(json.dumps({"resolved_rate_after": rate}))
        lines = [{"step": step, "tokens_per_s": 100.0, "num_trajectories": 4} for step in (1, 2)]
        (folder / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return 0

    fake = types.ModuleType("swe_rl.job.train")
    fake.run = run
    monkeypatch.setitem(sys.modules, "swe_rl.job.train", fake)
    monkeypatch.chdir(tmp_path)
    return ran


def sweep_folder(tmp_path):
    [folder] = tmp_path.glob("outputs/multirun/train/*")
    return folder


def test_it_finds_the_best(started, tmp_path, capsys):
    secret = f"+hardware.env_vars.HF_TOKEN={SECRET}"
    status = launch.run_command([*GRID, "trainer.lr=choice(0.01,0.02,0.03)", "trainer.seed=7", secret])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert sorted(started) == [0.01, 0.02, 0.03]
    folder = sweep_folder(tmp_path)
    trials = read_trials(folder)
    assert {trial.overrides: trial.objective for trial in trials} == {
        ("trainer.lr=0.01",): 0.99,
        ("trainer.lr=0.02",): 1.0,
        ("trainer.lr=0.03",): 0.99,
    }
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert "best_value: 1.0" in printed.out and "trainer.lr: 0.02" in printed.out
    assert (folder / "compare" / "compare.csv").is_file()
    assert (folder / "frozen" / "conf" / "config.yaml").is_file()
    assert "trainer.seed=7" in (folder / "0" / ".hydra" / "overrides.yaml").read_text()
    assert SECRET not in printed.out + printed.err
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_trial_that_the_check_refuses_fails_by_name(started, tmp_path, capsys):
    status = launch.run_command([*MEASURED, "trainer.lr=choice(-0.5)", "hydra.sweeper.n_trials=1"])
    printed = capsys.readouterr()
    assert (status, started) == (2, []), printed.err
    said = " ".join(printed.err.split())
    assert "trainer.lr=-0.5 must be above 0" in said and "trial 0 (trainer.lr=-0.5) was refused" in said
    assert "Traceback" not in printed.err
    [trial] = read_trials(sweep_folder(tmp_path))
    assert (trial.status, trial.objective) == (2, None)
    assert not (sweep_folder(tmp_path) / "0" / "config.yaml").exists()


def test_failures_that_the_sweeper_bears_still_are_the_exit_status(started, tmp_path, capsys):
    borne = ["hydra.sweeper.max_failure_rate=1.0", "hydra.sweeper.sampler.seed=1", "hydra.sweeper.n_trials=6"]
    status = launch.run_command([*MEASURED, "trainer.lr=choice(-0.5,0.02)", *borne])
    printed = capsys.readouterr()
    assert status == 2 and set(started) == {0.02}, printed.err
    assert "best_value: 1.0" in printed.out
    assert [trial.status for trial in read_trials(sweep_folder(tmp_path))].count(2) == 6 - len(started)


@pytest.mark.parametrize("arguments", [MEASURED, GRID])
def test_a_trial_without_its_figure_fails(arguments, started, capsys):
    unmeasured = [*arguments, "trainer.lr=choice(0.01)", "hydra.sweeper.n_trials=1", "model.revision=unmeasured"]
    assert launch.run_command(unmeasured) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "job.objective=resolved_rate_after was not measured" in said and "trial 0 (trainer.lr=0.01) failed" in said
    assert launch.run_command([*unmeasured, "hydra.sweeper.max_failure_rate=1.0"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in said
    assert ("No trial of 1 had a figure to go by" in said) == (arguments is MEASURED)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (OPTUNA, "Say which figure of summary.json counts"),
        ((*MEASURED, "job=status"), "job=status measures nothing"),
        ((*MEASURED, "hydra/launcher=submitit_slurm", "hardware=cpu"), "SLURM queues give nothing back"),
        ((*MEASURED, "job.dry_run=true"), "SLURM queues give nothing back"),
        ((*MEASURED, "job.detach=true"), "Leave job.detach out"),
        ((*MEASURED, "hydra.sweeper.direction=up"), "No trial was started"),
        ((*MEASURED, "hydra.sweeper.n_trials=many"), "n_trials"),
        ((*MEASURED, "rollout.nn=2"), "Unknown key 'rollout.nn'"),
    ],
)
def test_what_cannot_be_optimized_starts_nothing(arguments, part, started, capsys):
    assert launch.run_command([*arguments, "trainer.seed=choice(0,1)"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert part in said and "Traceback" not in said and started == []


def test_without_multirun_there_is_nothing_to_choose(started, capsys):
    assert launch.run_command(MEASURED[1:]) == 2
    assert "hydra/sweeper=optuna chooses jobs only together with --multirun" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("job", ["check", "plan"])
def test_what_all_trials_share_can_be_checked(job, started, tmp_path, capsys):
    given = [*MEASURED, f"job={job}", "trainer.lr=interval(0.01,0.02)"]
    assert launch.run_command(given) == 0
    assert launch.run_command([*given, "rollout.n=0"]) == 2
    assert "rollout.n=0" in "".join(capsys.readouterr()) and started == [] and list(tmp_path.iterdir()) == []


def test_a_study_is_kept_and_continued(started, tmp_path, optuna):
    storage = f"hydra.sweeper.storage=sqlite:///{tmp_path}/study.db"
    kept = [*MEASURED, storage, "hydra.sweeper.study_name=one", "hydra.sweeper.n_trials=1"]
    for low, high in ((0.01, 0.011), (0.02, 0.021)):
        assert launch.run_command([*kept, f"trainer.lr=interval({low},{high})"]) == 0
    assert [round(rate, 2) for rate in started] == [0.01, 0.02]
    study = optuna.load_study("one", f"sqlite:///{tmp_path}/study.db")
    assert [round(trial.value, 2) for trial in study.trials] == [0.99, 1.0]
