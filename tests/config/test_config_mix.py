"""A mix is composed by options of env, its mistakes are the usual ones, and rules name the part that they are about."""

import json

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import PACKAGE
from tests.env.harbor.test_harbor import write_task

MIX = ("env=mix", "rollout=default", "+env@env.mix.bugs=bugs")


def findings(*words):
    composed = compose([*MIX, *words])
    return check_config(composed.config, composed.origins)


def said(found):
    return [(finding.rule_id, finding.key) for finding in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["+env@env.mix.a=bug"], "Did you mean bugs"),
        (["+env@env.mix.a=bugs", "env.mix.a.weigth=2"], "Unknown key 'env.mix.a.weigth'"),
        (["env.mix.b.weight=2"], "env.mix has no such row|Unknown key 'env.mix.b|not there"),
        (["+env@env.mix.a=bugs", "env.mix.a.weight=often"], "must be a number, not 'often'"),
        (["env@env.mix.a=bugs"], r"write \+env@env.mix.a=bugs"),
        (["+env.mix.a.name=bugs"], r"\+env@env.mix.NAME=OPTION"),
        (["+env@env.mux.a=bugs"], "Unknown key 'env.mux'"),
    ],
)
def test_a_wrong_part_gets_the_usual_words(words, expected):
    with pytest.raises(ConfigError, match=expected):
        compose([*MIX, *words])


def test_values_of_a_part_say_where_they_come_from():
    composed = compose([*MIX, "env.mix.bugs.weight=3"])
    assert composed.origins.of("env.mix.bugs.weight") == "command line: env.mix.bugs.weight=3"
    assert composed.origins.of("env.mix.bugs.cache_verdicts") == "conf/env/bugs.yaml"


def test_a_mix_can_be_a_file_of_the_users_own(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "ours.yaml").write_text(
        "defaults:\n  - mix\n  - bugs@mix.easy\n  - jsonl@mix.rows\n  - _self_\n"
        "mix:\n  easy: {weight: 2}\n  rows: {dataset: rows.jsonl}\n"
    )
    env = compose(["env=ours"], tmp_path).config.env
    assert env.name == "mix" and sorted(env.mix) == ["easy", "rows"]
    assert (env.mix["easy"].weight, env.mix["rows"].dataset, env.mix["rows"].name) == (2.0, "rows.jsonl", "jsonl")


def test_an_environment_of_the_users_own_is_a_part_under_its_own_name(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "riddles.yaml").write_text("_target_: my_code.Riddles\n")
    config = compose([*MIX, "+env@env.mix.mine=riddles", "+env.mix.bugs.params.a=1"], tmp_path).config
    assert {name: part.name for name, part in config.env.mix.items()} == {"bugs": "bugs", "mine": "riddles"}
    [found] = [finding for finding in check_config(config) if finding.severity == "error"]
    assert "my_code" in found.message and found.message.startswith("part mine: ") and "env.mix.mine" in found.key


def test_the_option_of_a_data_set_that_depends_on_its_files_does_so_in_a_part():
    env = compose([*MIX, "+env@env.mix.k=kodcode", "env.mix.k.dataset=mine.parquet"]).config.env
    assert (env.mix["k"].split, env.mix["k"].eval_split) == ("train", "test")


def test_parts_and_weights_are_part_of_what_a_run_is():
    hashes = {
        config_hash(compose([*MIX, *words]).config)
        for words in ([], ["env.mix.bugs.weight=2"], ["+env@env.mix.more=bugs"], ["env.mix.bugs.split=heldout"])
    }
    assert len(hashes) == 4


def test_a_sound_mix_has_no_finding(tmp_path):
    write_task(tmp_path / "train" / "a")
    write_task(tmp_path / "test" / "b")
    words = ["+env@env.mix.tasks=harbor", f"env.mix.tasks.dataset={tmp_path}"]
    assert said(findings(*words)) == []


def test_a_rule_names_the_part_and_its_key():
    [found] = findings("env.mix.bugs.split=trein")
    assert said([found]) == [("split", "env.mix.bugs.split")]
    assert found.message.startswith("part bugs: ") and found.fix == "env.mix.bugs.split=train"
    assert found.value == "trein" and found.origin == "command line: env.mix.bugs.split=trein"


def test_a_part_that_needs_images_is_refused_with_its_name():
    found = findings("+env@env.mix.gym=swe_gym", "sandbox=process")
    refused = [finding for finding in found if finding.severity == "error"]
    assert refused and all("part gym" in finding.message or "env.mix.gym" in finding.key for finding in refused)


def test_what_every_part_has_alike_is_said_once():
    found = findings("+env@env.mix.more=bugs", "rollout.max_turn_tokens=4000")
    assert len(said(found)) == len(set(said(found))) > 0
    assert not any("part " in finding.message for finding in found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env.mix.bugs.weight=0"], ("mix_weights", "env.mix.bugs.weight")),
        (["env.mix.bugs.weight=-1"], ("range", "env.mix.bugs.weight")),
        (["env.dataset=rows.jsonl"], ("mix_key", "env.dataset")),
        (["env.unproven=keep"], ("mix_key", "env.unproven")),
        (["env.eval_split=train"], ("mix", "env.eval_split")),
        (["+env@env.mix.m=mix"], ("mix", "env.mix.m")),
        (["env=bugs"], ("mix", "env.mix")),
    ],
)
def test_what_cannot_work_is_refused(words, expected):
    assert expected in said(findings(*words))


def test_a_mix_without_parts_is_refused():
    found = check_config(compose(["env=mix", "rollout=default"]).config)
    assert ("mix", "env.mix") in said(found)


def test_a_part_needs_as_many_instances_as_its_share_of_a_step(tmp_path):
    rows = (PACKAGE / "env/bugs/data/train.jsonl").read_text(encoding="utf-8").splitlines()
    names = [json.loads(row)["instance_id"] for row in rows]
    (tmp_path / "few.txt").write_text("\n".join(names[:3]) + "\n")
    words = ["+env@env.mix.few=bugs", f"env.mix.few.instances={tmp_path}/few.txt"]
    assert ("mix_weights", "env.mix.few.weight") in said(findings(*words))
    assert said(findings(*words, "env.mix.bugs.weight=2")) == []


def test_options_that_parts_bring_and_that_cannot_all_hold_are_warned_of():
    words = ["env=mix", "+env@env.mix.a=swebench_lite", "+env@env.mix.b=humaneval"]
    composed = compose(words)
    [found] = [finding for finding in check_config(composed.config, composed.origins) if finding.rule_id == "mix_parts"]
    assert found.key == "rollout" and found.value == composed.choices["rollout"]
    assert "a: rollout=swe" in found.message and "b: rollout=functions" in found.message
    for chosen in ("rollout=swe", "rollout=functions"):
        composed = compose([*words, chosen])
        assert "mix_parts" not in {finding.rule_id for finding in check_config(composed.config, composed.origins)}
    assert "mix_parts" not in {rule for rule, _ in said(findings("+env@env.mix.more=bugs"))}
