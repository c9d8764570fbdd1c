"""The task and the known fix of an instance, where the data set is on this machine."""

import json

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.view.answers import Answers
from swe_rl.view.known_instances import _read_instances, known_fix, task_text

BUGS = {"name": "bugs", "dataset": "builtin:bugs", "split": "train", "eval_split": "heldout"}


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_an_embedded_instance_of_either_split_has_its_fix(split):
    instance = _read_instances(EnvConfig(), split)[0]
    assert known_fix({"env": BUGS}, instance.instance_id) == instance.patch
    assert instance.patch.startswith("diff --git ")
    assert task_text({"env": BUGS}, instance.instance_id) == instance.problem_statement


def test_a_part_of_a_mix_knows_its_instances():
    instance = _read_instances(EnvConfig(), "heldout")[0]
    env = {"name": "mix", "dataset": "parts", "mix": {"other": {"dataset": "absent"}, "ours": BUGS}}
    assert known_fix({"env": env}, instance.instance_id) == instance.patch
    assert known_fix({"env": env}, f"ours.{instance.instance_id}") == instance.patch
    assert known_fix({"env": env}, f"else.{instance.instance_id}") is None


def test_rows_of_a_file_have_their_fixes(tmp_path):
    row = dict.fromkeys(("base_commit", "problem_statement", "test_patch"), "x")
    row |= {"instance_id": "mine-1", "repo": "a/b", "patch": "diff --git a/x b/x", "FAIL_TO_PASS": ["t"]}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row | {"PASS_TO_PASS": []}) + "\n")
    env = {"name": "swebench", "dataset": str(path), "split": "train", "eval_split": "train"}
    assert known_fix({"env": env}, "mine-1") == "diff --git a/x b/x"
    assert known_fix({"env": env}, "mine-2") is None
    assert task_text({"env": env}, "mine-1") == "x"


def test_of_a_large_file_nothing_is_known(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as rows:
        rows.truncate(64_000_001)
    env = {"name": "swebench", "dataset": str(path), "split": "train", "eval_split": "train"}
    assert known_fix({"env": env}, "mine-1") is None is task_text({"env": env}, "mine-1")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"env": "x"},
        {"env": BUGS | {"dataset": "princeton-nlp/SWE-bench_Verified"}},
        {"env": BUGS | {"eval_dataset": "somebody/elsewhere"}},
        {"env": BUGS | {"_target_": "mine.Env"}},
        {"env": BUGS | {"split": 7, "grading": "unheard of"}},
    ],
)
def test_nothing_is_fetched_and_no_code_of_others_runs(config, monkeypatch):
    monkeypatch.setattr("swe_rl.dataset.find_rows._from_hub", lambda *given: pytest.fail("it asked the hub"))
    assert known_fix(config, "bugs__routes-001") is None


def test_the_viewer_s_trajectory_has_the_fix(runs, folder, traced):
    config = folder.path / "config.yaml"
    config.write_text("env: {name: bugs, dataset: 'builtin:bugs', split: train, eval_split: heldout}\n")
    asked = {"run": ["train/first"], "set": ["step_000002"], "id": [traced["trajectory_id"]]}
    assert Answers(runs).by_name["trajectory"](asked)["known_fix"] is None
    instance = _read_instances(EnvConfig(), "train")[0]
    path = folder.trajectories(2)
    path.write_text(path.read_text().replace(traced["instance_id"], instance.instance_id))
    trajectory_id = traced["trajectory_id"].replace(traced["instance_id"], instance.instance_id)
    shown = Answers(runs).by_name["trajectory"](asked | {"id": [trajectory_id]})
    assert shown["known_fix"] == instance.patch
