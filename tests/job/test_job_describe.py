"""`job=describe`: documentation comes from the comments in conf/ and the schema."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.documentation import comment_of, yaml_comments
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import conf_dir
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


def test_comments_of_the_chosen_option_and_its_parents():
    path = conf_dir() / "rollout" / "swe.yaml"
    assert yaml_comments(path)["n"] == "trajectories of one instance: a group"
    assert comment_of("trainer.resume") == "auto, none, or a run folder"
    assert comment_of("job.strict") == "warnings count as errors"
    assert comment_of("rollout.n", path) == "trajectories of one instance: a group"


@pytest.mark.parametrize("topic", ["rolout", "algo/nope", "rollout.x"])
def test_unknown_topic(topic):
    with pytest.raises(ConfigError, match="job.topic"):
        job.describe(compose().config, topic)
