"""`job=prepare` of data sets: once, with a manifest, sources built, revisions never mixed."""

import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.env.instance import InstanceError
from swe_rl.env.records import Row
from swe_rl.env.source_build import build as builds
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.swe import read as reading
from swe_rl.env.swe.dataset import Loaded
from swe_rl.job import prepare as job

pytest.importorskip("pyarrow")

SOURCE = {"sdist": "b-1.0", "fix": "applies forward", "python": "3.9"}


def record(name, **columns):
    return {
        "instance_id": name,
        "repo": "a/b",
        "base_commit": name * 40,
        "problem_statement": "It fails.",
        "patch": "diff --git a/x b/x\n",
        "test_patch": "diff --git a/t.py b/t.py\n",
        "FAIL_TO_PASS": ["t.py::x"],
        "PASS_TO_PASS": [],
    } | columns


@pytest.fixture
def config(tmp_path):
    def composed(*overrides):
        words = ["job=prepare", "env=jsonl", f"env.dataset={tmp_path}/mine.jsonl", f"paths.cache={tmp_path}/cache"]
        slices = ['env.split="train[:2]"', 'env.eval_split="train[2:]"']
        return compose([*words, *slices, *overrides]).config

    return composed


def test_each_split_is_written_once_with_what_was_left_out(tmp_path, config, capsys):
    rows = [record("a"), record("b", FAIL_TO_PASS=[]), record("c")]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert job.run(config(), None) == 0
    said = capsys.readouterr().out
    assert "1 of 2 rows left out: no FAIL_TO_PASS test" in said
    manifests = {path.name: json.loads(path.read_text()) for path in (tmp_path / "cache").rglob("*.manifest.json")}
    first = next(one for one in manifests.values() if one["made_for"]["split"] == "train[:2]")
    assert first["rows"] == 1 and first["source_rows"] == 2 and first["revision"].startswith("sha256:")
    assert first["dropped"] == {"no FAIL_TO_PASS test": {"count": 1, "instances": ["b"]}} and len(manifests) == 2
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.parquet")}
    assert job.run(config(), None) == 0 and "left out" not in capsys.readouterr().out
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.parquet")}


def test_sources_are_built_and_one_that_fails_does_not_stop_the_others(tmp_path, config, monkeypatch, capsys):
    rows = [record("a", source=SOURCE), record("b", source=SOURCE), record("c")]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = []

    def build(instance, cache):
        asked.append(instance.instance_id)
        if instance.instance_id == "a":
            raise BuildError("a: no network")

    monkeypatch.setattr(builds, "build", build)
    assert job.run(config(), None) == 1
    said = capsys.readouterr().out
    assert asked == ["a", "b"] and "a: no network" in said and "1 of 2 folders are ready" in said


def test_two_revisions_of_the_hub_are_not_mixed(tmp_path, config, monkeypatch):
    revisions = iter(["aaa", "bbb"])

    def load(dataset, split, *, revision, key):
        name = "a" if split == "train" else "b"
        return Loaded([Row("row", record(name))], dataset, next(revisions))

    monkeypatch.setattr(reading, "load_rows", load)
    words = ["env.dataset=you/data", "env.split=train", "env.eval_split=test"]
    with pytest.raises(
        InstanceError, match=r"train of you/data was prepared from revision aaa.*at bbb now.*env\.revision=aaa"
    ):
        job.run(config(*words), None)
