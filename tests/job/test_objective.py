"""What a job returns to Hydra: the figure that job.objective names, or one paragraph why there is none."""

import json
import sys
import types

import pytest

from swe_rl.cli import launch
from swe_rl.cli.dispatch import ObjectiveError, read_objective
from swe_rl.config.choices import Objective
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.explain import ConfigError
from swe_rl.config.hydra_callback import MaskSecrets
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.logger.summary import write_summary
from swe_rl.run.which_folder import folder_of_ended

OVERRIDES = ("job.objective=resolved_rate_after",)


def measured(folder, **figures):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(figures))
    return folder


def test_the_figures_are_those_of_a_summary(tmp_path):
    folder = RunFolder(tmp_path / "run").create()
    folder.events_jsonl.write_text("".join(
        json.dumps({"event": "eval", "split": "a", "step": step, "resolved_rate": 0.5, "num_samples": 2}) + "\n"
        for step in (0, 1)
    ))  # fmt: skip
    folder.steps_jsonl.write_text(json.dumps({"step": 1, "tokens_per_s": 2.0, "sampled_tokens_per_s": 1.0}) + "\n")
    summary = write_summary(folder, wall_s=1.0, extra={"peak_memory_gb": 1.0})
    numbers = {key for key, value in summary.items() if type(value) in (int, float)}
    assert numbers == set(Objective)


def test_the_named_figure_is_returned(tmp_path):
    folder = measured(tmp_path / "run", resolved_rate_after=0.25, wall_s=3)
    assert read_objective(compose(OVERRIDES).config, folder) == 0.25
    assert read_objective(compose(["job.objective=wall_s"]).config, folder) == 3.0
    assert read_objective(compose().config, tmp_path / "nowhere") is None


@pytest.mark.parametrize("figures", [{"wall_s": 2.5}, {"resolved_rate_after": None, "wall_s": 2.5}])
def test_a_figure_that_was_not_measured(figures, tmp_path):
    folder = measured(tmp_path / "run", **figures, git_sha="abc", git_dirty=True)
    with pytest.raises(ObjectiveError, match="resolved_rate_after was not measured.*Figures that it has: wall_s[.]"):
        read_objective(compose(OVERRIDES).config, folder)
    with pytest.raises(ObjectiveError, match="has: none"):
        read_objective(compose(OVERRIDES).config, tmp_path / "nowhere")


def test_a_figure_that_does_not_exist():
    with pytest.raises(
        ConfigError, match=r"job.objective must be one of steps, .*not 'resolved_rate_aftr'.*Did you mean"
    ):
        compose(["job.objective=resolved_rate_aftr"])


def test_of_a_run_that_was_continued(tmp_path):
    given = [*OVERRIDES, f"paths.outputs={tmp_path}", "trainer.resume=auto"]
    config = compose(given).config
    for name, seed, rate in (("old", 0, 0.1), ("new", 0, 0.2), ("other", 1, 0.3)):
        folder = measured(tmp_path / "train" / name, resolved_rate_after=rate)
        digest = config_hash(compose([*given, f"trainer.seed={seed}"]).config)
        StatusWriter(folder / "status.json", config_hash=digest).finish(RunState.done, reason=None, exit_status=0)
    fresh = tmp_path / "train" / "fresh"
    assert folder_of_ended(config, fresh).name == "new" and read_objective(config, fresh) == 0.2
    named = compose([*given, f"trainer.resume={tmp_path / 'train' / 'other'}"]).config
    assert read_objective(named, fresh) == 0.3
    assert read_objective(config, measured(fresh, resolved_rate_after=0.4)) == 0.4


@pytest.fixture
def job(monkeypatch, tmp_path):
    """job=train that leaves a summary and nothing else."""

    def run(config, folder):
        measured(folder, resolved_rate_after=config.trainer.lr if config.trainer.lr < 1 else None)
        return 0

    fake = types.ModuleType("swe_rl.job.train")
    fake.run = run
    monkeypatch.setitem(sys.modules, "swe_rl.job.train", fake)
    monkeypatch.chdir(tmp_path)


def test_a_single_run_ends_with_it(job, capsys):
    assert launch.run_command(["trainer.lr=0.5", *OVERRIDES]) == 0
    assert launch.run_command(["trainer.lr=1.0", *OVERRIDES]) == 1
    said = capsys.readouterr().err
    assert "run failed: job.objective=resolved_rate_after was not measured" in said and "Traceback" not in said


def test_hydras_callbacks_see_it(job, monkeypatch):
    """on_job_end is where other tools of Hydra's read what a job returned."""
    seen = []

    def on_job_end(self, config, job_return, **_):
        seen.append(job_return.return_value)

    monkeypatch.setattr(MaskSecrets, "on_job_end", on_job_end)
    assert launch.run_command(["--multirun", "trainer.lr=0.5,0.25", *OVERRIDES]) == 0
    assert seen == [0.5, 0.25]
