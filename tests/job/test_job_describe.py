"""`job=describe`: documentation comes from the comments in conf/ and the schema."""

import pytest

from swe_rl.__main__ import main
from swe_rl.check.check import check_config
from swe_rl.cli.help import help_text
from swe_rl.config.compose import compose, expand_sweep
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import conf_dir
from swe_rl.config.keys import comment_of, yaml_comments
from swe_rl.job import describe as job


def told(capsys, topic, *overrides):
    composed = compose(["job=describe", f"job.topic={topic}", *overrides])
    assert job.run(composed.config, None, composed.origins) == 0
    return capsys.readouterr().out


def test_key(capsys):
    out = told(capsys, "rollout.n", "rollout.n=3")
    assert out.splitlines() == [
        "rollout.n = 3",
        "    trajectories of one instance: a group",
        "    a whole number, at least 1; from command line: rollout.n=3",
    ]


def test_table_of_keys(capsys):
    out = told(capsys, "rollout.outcomes")
    assert "infra_error.reward" in out


def test_group_option_and_overview(capsys):
    assert "rollout.eval_n" in told(capsys, "rollout")
    assert "2402.14740" in told(capsys, "algo/rloo")
    assert "dp4_tr_atw01" in told(capsys, "experiment")
    overview = told(capsys, "null")
    assert "qwen3_14b" in overview and "seeds" in overview
    assert "local_processes" in told(capsys, "hydra/launcher")
    assert "hydra/launcher=local_processes" in told(capsys, "hydra/launcher/local_processes")


def test_comments_of_the_chosen_option_and_its_parents():
    path = conf_dir() / "rollout" / "swe.yaml"
    assert yaml_comments(path)["typical_trajectory_tokens"] == "mean context under way of Qwen3-14B on SWE-Gym"
    assert yaml_comments(conf_dir() / "router" / "tr_atw01.yaml")["tick_s"].startswith("seconds between two looks")
    assert comment_of("trainer.resume") == "auto, none, or a run folder"
    assert comment_of("job.strict") == "warnings count as errors"
    assert comment_of("rollout.n", path) == "trajectories of one instance: a group"


@pytest.mark.parametrize("topic", ["rolout", "algo/nope", "rollout.x", "hydra", "hydra/launcher/nope"])
def test_unknown_topic(topic):
    with pytest.raises(ConfigError, match="job.topic"):
        job.describe_topic(compose().config, topic)


@pytest.fixture
def own(tmp_path):
    for name, text in {
        "hardware/mine": "# Sixty-four cores in the cellar.\nname: mine\ncpus_per_node: 64  # all of them\n",
        "model/tiny": "# A smaller one.\nname: tiny\n",
        "sweep/seeds": "# @package _global_\n# Two of my seeds.\nhydra: {sweeper: {params: {trainer.seed: '8,9'}}}\n",
        "hydra/launcher/garage": "# The machine next door.\ndefaults:\n  - local_processes\n  - _self_\n",
    }.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "model" / "latin.yaml").write_bytes(b"# Caf\xe9.\nname: latin\n")
    return tmp_path


def describe_own(own, topic, *overrides):
    composed = compose(["job=describe", *overrides], own)
    return job.describe_topic(composed.config, topic, composed.origins)


def test_the_users_own_options_are_among_them(own):
    assert "own" not in describe_own(own, "experiment")[0]
    overview = {record["group"]: record for record in describe_own(own, None)}
    assert overview["hardware"]["options"]["mine"] == "Sixty-four cores in the cellar."
    assert overview["hardware"]["own"] == {"mine": str(own / "hardware" / "mine.yaml")}
    assert overview["hydra/launcher"]["options"]["garage"] == "The machine next door."
    [option] = describe_own(own, "hardware/mine")
    assert option["about"] == "Sixty-four cores in the cellar." and "cpus_per_node: 64" in option["file"]
    [key] = describe_own(own, "hardware.cpus_per_node", "hardware=mine")
    assert (key["value"], key["about"]) == (64, "all of them") and key["from"].endswith("hardware/mine.yaml")


def test_a_name_that_is_taken_is_said(own):
    overview = {record["group"]: record for record in describe_own(own, None)}
    assert overview["model"]["own"]["tiny"].endswith("model/tiny.yaml (never read: conf/model/tiny.yaml has the name)")
    assert overview["model"]["options"]["tiny"] != "A smaller one."
    assert overview["sweep"]["own"]["seeds"].endswith("seeds.yaml (read instead of sweeps/seeds.yaml)")
    assert overview["sweep"]["options"]["seeds"] == "Two of my seeds."
    assert "# Two of my seeds." in describe_own(own, "sweep/seeds")[0]["file"]


def test_what_is_said_of_a_taken_name_is_what_hydra_does(own):
    assert compose(["model=tiny"], own).config.model.num_layers == compose().config.model.num_layers
    assert [one[0] for one in expand_sweep(["+sweep=seeds"], own)] == ["trainer.seed=8", "trainer.seed=9"]
    composed = compose(["hardware=mine"], own)
    found = [finding for finding in check_config(composed.config, composed.origins) if finding.rule_id == "own_option"]
    assert [(one.severity, one.key, one.value) for one in found] == [("warning", "model", "tiny")]
    assert "never read: conf/model/tiny.yaml has the name" in found[0].message
    composed = compose(["model=qwen3_4b", "job=rollout"], own)
    assert "own_option" not in {finding.rule_id for finding in check_config(composed.config, composed.origins)}


def test_help_lists_them(own, capsys, monkeypatch):
    text = help_text(own)
    assert f"Your own, in {own}" in text
    assert "hardware=mine" in text and "Sixty-four cores in the cellar." in text
    assert "(never read: conf/model/tiny.yaml has the name)" in text
    for arguments in (["--config-dir", str(own), "--help"], ["--help", f"--config-dir={own}"], ["-h", "-cd", str(own)]):
        monkeypatch.setattr("sys.argv", ["swe_rl", *arguments])
        assert main() == 0 and capsys.readouterr().out == text + "\n"
    for arguments, said in ((["--config-dir", str(own / "no")], "no such folder"), (["--config-dir"], "expected one")):
        monkeypatch.setattr("sys.argv", ["swe_rl", "--help", *arguments])
        assert main() == 2 and said in capsys.readouterr().err
