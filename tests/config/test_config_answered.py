"""`job=check` and `job=plan` compose the options that the job of `job.of` brings, as that job itself does."""

import pytest

from swe_rl.cli import launch
from swe_rl.config.compose import compose, compose_all, compose_fixed, expand_sweep
from swe_rl.config.explain import ConfigError

EXPERIMENTS = {
    "mine": "# @package _global_\ndefaults:\n  - _self_\n  - override /algo: dapo\n",
    "values": "# @package _global_\nalgo: {clip_low: 0.5}\n",
    "rft": "# @package _global_\njob: {of: rft}\n",
    "variable": "# @package _global_\njob: {of: '${oc.env:ANSWERED,train}'}\n",
    "reference": "# @package _global_\njob: {of: '${logger.project}'}\n",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with experiments, and with a job that is a plan under another name."""
    folder = tmp_path_factory.mktemp("own")
    for group in ("experiment", "job"):
        (folder / group).mkdir()
    for name, text in EXPERIMENTS.items():
        (folder / "experiment" / f"{name}.yaml").write_text(text)
    (folder / "job" / "asks.yaml").write_text("defaults:\n  - plan\nstrict: true\n")
    return folder


@pytest.mark.parametrize("asking", ["plan", "check", "asks"])
@pytest.mark.parametrize(
    "more", [[], ["+experiment=mine"], ["algo=rloo"], ["+experiment=values"], ["algo.clip_high=0.7", "layout=local2"]]
)
def test_what_answers_for_a_job_has_its_options(own, asking, more):
    started = compose(["job=rft", *more], own)
    for of in (["job.of=rft"], ["job.of='rft'"], ["++job.of=rft"], ["job.of=train", "job.of=rft"]):
        asked = compose([f"job={asking}", *of, *more], own)
        assert asked.config.algo == started.config.algo
        assert asked.choices["algo"] == started.choices["algo"]
        assert asked.overrides == (f"job={asking}", *of, *more)
    other = compose([f"job={asking}", "job.of=rft", "job.of=train", *more], own)
    assert other.config.algo == compose(more, own).config.algo


def test_a_file_may_say_for_which_job_it_answers(own, monkeypatch):
    assert compose(["job=plan", "+experiment=rft"], own).config.algo.name == "rft"
    assert compose(["job=plan", "+experiment=rft", "job.of=train"], own).config.algo.name == "grpo"
    assert compose(["job=train", "+experiment=rft"], own).config.algo.name == "grpo"
    for job, algo in (("rft", "rft"), ("train", "grpo"), ("rft", "rft")):
        monkeypatch.setenv("ANSWERED", job)
        assert compose(["job=plan", "+experiment=variable"], own).config.algo.name == algo
        reference = compose(["job=plan", "+experiment=reference", f"logger.project={job}"], own)
        assert reference.config.algo.name == algo


def test_each_way_to_compose_answers_alike(own, capsys):
    assert compose_fixed(["job=plan", "job.of=rft"]).config.algo.name == "rft"
    jobs = compose_all(expand_sweep(["job=plan", "job.of=train,rft", "+experiment=mine,values"], own), own)
    assert [job.config.algo.name for job in jobs] == ["dapo", "grpo", "dapo", "rft"]
    assert launch.run_command(["job=plan", "job.of=rft", "--cfg", "job", "--package", "algo"]) == 0
    assert "name: rft" in capsys.readouterr().out


def test_a_job_that_is_none_is_still_explained(own):
    with pytest.raises(ConfigError, match="job.of"):
        compose(["job=plan", "job.of=rtf"], own)
