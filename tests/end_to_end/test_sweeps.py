"""Sweeps as a user starts them: all jobs checked first, what was submitted is what runs, no secret in any file."""

import json
import os
import time
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.test_extensions import code_that_goes, each_job_had_its_copy

pytestmark = pytest.mark.slow

TINY = ("job=rollout", "trainer.steps=1", "rollout.prompts_per_step=1", "rollout.n=2", "sandbox.concurrency=2")


def files_below(folder: Path):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def sweep_folder(command, name="rollout") -> Path:
    [folder] = (command.outputs / "multirun" / name).iterdir()
    return folder


def test_one_bad_job_among_64_refuses_all(command):
    done = command.run("--multirun", "rollout.max_turns=range(64)", small=False)
    assert done.exit_status == 2, done.text
    assert "job 0: error [range] rollout.max_turns=0" in done.stderr
    assert "Nothing was started: 1 of 64 jobs cannot run." in done.stderr
    assert not command.outputs.exists()


def test_an_edit_while_jobs_wait_changes_nothing(command):
    own = command.root / "own"
    (own / "hardware").mkdir(parents=True)
    option = own / "hardware" / "mine.yaml"
    option.write_text("name: mine\ncpus_per_node: 7\n")
    given = ("--multirun", "--config-dir", str(own), "hardware=mine", "trainer.seed=0,1", *TINY)
    process = command.start(*given, small=False)
    until = time.monotonic() + 120
    while not list(command.outputs.glob("multirun/*/*/0/config.yaml")):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    option.write_text("name: mine\ncpus_per_node: nonsense\n")
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    configs = [yaml.safe_load((sweep_folder(command) / str(job) / "config.yaml").read_text()) for job in (0, 1)]
    assert [config["hardware"]["cpus_per_node"] for config in configs] == [7, 7]


def test_jobs_of_their_own_processes_run_the_frozen_code_and_hide_secrets(command, monkeypatch):
    """Also code of the user's own, whose folder is gone when the second job runs."""
    planted = {"WANDB_API_KEY": "planted-one-5c1f", "HF_TOKEN": "planted-two-77aa", "MY_API_KEY": "planted-three-e0d9"}
    monkeypatch.setenv("WANDB_API_KEY", planted["WANDB_API_KEY"])
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (command.root / ".env").write_text(f"HF_TOKEN={planted['HF_TOKEN']}\n")
    secret = f"+hardware.env_vars.MY_API_KEY={planted['MY_API_KEY']}"
    own, given = code_that_goes(command)
    done = command.run(
        "--multirun",
        *own,
        "hydra/launcher=local_processes",
        "trainer.seed=0,1",
        *TINY,
        secret,
        "logger.wandb=offline",
        small=False,
    )
    assert done.exit_status == 0, done.text
    folder = sweep_folder(command)
    each_job_had_its_copy(folder, given)
    assert list((folder / "frozen" / "swe_rl" / "job" / "__pycache__").glob("rollout.*")), (
        "another package was imported"
    )
    assert json.loads((folder / "frozen" / "jobs" / "1.json").read_text())["trainer.seed"] == 1

    seen = [path for path in files_below(command.root) if path.name != ".env"]
    assert len(seen) > 200
    assert list(folder.rglob("*.pkl")), "the launcher's own files are among them"
    for value in planted.values():
        assert value not in done.text
        assert not [path for path in seen if value in str(path) or value.encode() in path.read_bytes()]


def test_optuna_gets_its_figures_from_other_processes(command):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra optuna is not installed")
    optuna = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.max_failure_rate=1.0")
    given = ("--multirun", *optuna, "hydra/launcher=local_processes", "job.objective=tokens_per_s")
    done = command.run(*given, *(word for word in TINY if word != "rollout.n=2"), "rollout.n=choice(0,2)", small=False)
    assert done.exit_status == 2, done.text
    trials = [json.loads(path.read_text()) for path in (sweep_folder(command) / "trials").iterdir()]
    by_n = {trial["overrides"][0]: trial for trial in trials}
    assert by_n["rollout.n=0"]["status"] == 2 and by_n["rollout.n=0"]["objective"] is None
    good = by_n["rollout.n=2"]
    summary = json.loads((sweep_folder(command) / str(good["number"]) / "summary.json").read_text())
    assert (good["status"], good["objective"]) == (0, summary["tokens_per_s"]) and good["objective"] > 0


def test_the_frozen_configuration_is_compared(command, monkeypatch):
    """An environment variable that conf/ reads differs where the job runs: refused, and the key is named."""
    from swe_rl.config.compose import compose
    from swe_rl.config.explain import ConfigError
    from swe_rl.submission.freeze import freeze_jobs, verify_frozen

    monkeypatch.setenv("TRAINING_DATA_SYNC_DEST", "/here")
    jobs = [compose(["trainer.seed=0"]), compose(["trainer.seed=1"])]
    freeze_jobs(command.root / "sweep", jobs, None, code=False)
    verify_frozen(command.root / "sweep" / "1", 1, compose(["trainer.seed=1"]))
    monkeypatch.setenv("TRAINING_DATA_SYNC_DEST", "/there")
    with pytest.raises(ConfigError, match=r"Job 1 composes.*paths.sync_to=/there, then /here"):
        verify_frozen(command.root / "sweep" / "1", 1, compose(["trainer.seed=1"]))
    verify_frozen(command.root / "alone", None, compose())


def test_dotenv_decides_where_nothing_else_does(command):
    (command.root / ".env").write_text("VLLM_URL=http://a:1,http://b:2\nTRAINING_DATA_SYNC_DEST=/from/file\n")
    os.environ.pop("VLLM_URL", None)
    done = command.run("engine=external", "job=plan", "job.format=json", small=False)
    assert done.exit_status == 0, done.text
    told = json.loads(done.stdout)["environment"]
    assert told["VLLM_URL"].startswith("http://a:1,http://b:2 (from: .env)")
    assert told["HF_TOKEN"].startswith("not set") or "***" in told["HF_TOKEN"]


def test_a_check_of_a_sweep_names_each_job_and_looks_at_the_whole(command):
    given = ("--multirun", "hydra/launcher=slurm_h100", "hardware=h100x8,fasrc_prod", "job=check")
    done = command.run(*given, small=False)
    assert done.exit_status == 2, done.text
    assert "job 1: hydra/launcher=slurm_h100" in done.stdout and "hardware=fasrc_prod job=check" in done.stdout
    said = " ".join(done.stderr.split())
    assert "error [sweep_hardware] hardware.name=fasrc_prod job 1 wants other SLURM settings than job 0" in said
    assert "Traceback" not in done.text and not command.outputs.exists()
