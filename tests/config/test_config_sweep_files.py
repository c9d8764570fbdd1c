"""The files of sweeps/ are read as Hydra reads other files, and as they are at each composition."""

import os
import shutil

import pytest

from swe_rl.cli.hydra_main import through_hydra
from swe_rl.config import folders
from swe_rl.config.compose import compose
from swe_rl.config.explain import ConfigError
from swe_rl.submission.freeze import freeze_jobs

VALUES = "router: {params: {a: 1e-3, b: 1_000, c: 2001-01-01, d: on, e: .5e3, f: 0o7, g: 1:30}}\n"


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """The folder sweeps/ of a checkout of one's own."""
    for name in ("conf", "sweeps", "launchers"):
        shutil.copytree(folders.PACKAGE.parent / name, tmp_path / name)
    (tmp_path / "swe_rl").mkdir()
    monkeypatch.setattr(folders, "PACKAGE", tmp_path / "swe_rl")
    return tmp_path / "sweeps"


def test_a_file_has_the_values_that_it_has_in_a_folder_of_the_users_own(sweeps, tmp_path):
    own = tmp_path / "own" / "sweep"
    own.mkdir(parents=True)
    (sweeps / "mine.yaml").write_text(VALUES)
    (own / "other.yaml").write_text(f"# @package _global_\n{VALUES}")
    params = compose(["+sweep=mine"]).config.router.params
    assert repr(params) == repr(compose(["+sweep=other"], own.parent).config.router.params)
    assert params["a"] == 0.001


def test_a_file_is_read_as_it_is_now(sweeps):
    path = sweeps / "seeds.yaml"
    for steps in (7, 8):
        path.write_text(f"trainer: {{steps: {steps}}}\n")
        os.utime(path, (steps, steps))
        assert compose(["+sweep=seeds"]).config.trainer.steps == steps
    (sweeps / "later.yaml").write_text("trainer: {steps: 9}\n")
    assert compose(["+sweep=later"]).config.trainer.steps == 9
    path.unlink()
    with pytest.raises(ConfigError, match="seeds"):
        compose(["+sweep=seeds"])


@pytest.mark.parametrize("text", ["trainer: {steps: 1, steps: 2}\n", "trainer: [\n", "trainer: {steps: \xff}\n"])
def test_a_file_with_an_error_is_refused_where_it_is_chosen(sweeps, text):
    (sweeps / "mine.yaml").write_bytes(text.encode("latin-1"))
    assert compose(["+sweep=seeds"]).config.trainer.seed == 0
    with pytest.raises(ConfigError, match="mine"):
        compose(["+sweep=mine"])


def test_jobs_of_a_sweep_have_the_files_that_were_frozen(sweeps, tmp_path):
    (sweeps / "mine.yaml").write_text("trainer: {steps: 7}\n")
    overrides = ["+sweep=mine", f"paths.outputs={tmp_path / 'outputs'}"]
    frozen = freeze_jobs(tmp_path / "sweep", [compose(overrides)], None, code=False)
    (sweeps / "mine.yaml").write_text("trainer: {steps: 8}\n")
    steps = []
    through_hydra(lambda tree: steps.append(tree.trainer.steps), [], overrides, None, conf=frozen.conf)
    through_hydra(lambda tree: steps.append(tree.trainer.steps), [], overrides, None)
    assert steps == [7, 8]
