"""`job=prepare` of data sets: once, with a manifest, sources built, revisions never mixed."""

import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.dataset.find_rows import LoadedRows
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.records import PlacedRecord
from swe_rl.env.env import Grade
from swe_rl.env.proof.record import book_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.swe import read as reading
from swe_rl.env.swe.env import SweEnv
from swe_rl.job import prepare as job
from swe_rl.job import validate

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
    book_of.cache_clear()

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


class Graded:
    """What `grade` says of each instance."""

    def __init__(self, monkeypatch, outcomes):
        self.asked, outcomes = [], dict(outcomes)

        def workspace(env, instance):
            self.asked.append(instance.instance_id)
            if isinstance(outcomes[instance.instance_id], Exception):
                raise outcomes[instance.instance_id]

        async def grade(env, instance, patch, sandboxes, timeout_s):
            assert timeout_s == 900.0
            return Grade(outcomes[instance.instance_id] and patch == instance.patch, True, {"t.py::x": True})

        monkeypatch.setattr(SweEnv, "workspace", workspace)
        monkeypatch.setattr(SweEnv, "grade", grade)
        monkeypatch.setattr(SweEnv, "released", lambda env, instance: None)
        monkeypatch.setattr(SweEnv, "nearer", lambda env, instance: [])


def test_sources_are_proven_and_one_that_cannot_be_made_does_not_stop_the_others(tmp_path, config, monkeypatch, capsys):
    rows = [record("a", source=SOURCE), record("b", source=SOURCE), record("c")]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    graded = Graded(monkeypatch, {"a": BuildError("no network"), "b": True})
    assert job.run(config("sandbox=process"), None) == 0
    said = capsys.readouterr().out
    assert "1 instances have no column 'source', which sandbox=process needs: c" in said
    assert "a: left out after" in said and "b: proven in" in said
    assert said.splitlines()[-1].startswith(
        "1 of 3 instances are proven; 2 left out (env.unproven=skip): a, c; proofs: "
    )
    graded.asked.clear()
    assert job.run(config("sandbox=process"), None) == 0
    assert set(graded.asked) == {"a"}  # what could not be built is tried again, what is proven is not
    capsys.readouterr()
    assert job.run(config("sandbox=process", "env.unproven=refuse"), None) == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert "1 of 3 instances are proven; env.unproven=refuse: no run starts with the other 2: a, c; proofs: " in last
    Graded(monkeypatch, {"a": True, "b": True})
    assert validate.run(config("sandbox=process", "env.unproven=refuse"), None) == 2  # c has no way
    lines = [json.loads(line) for line in (tmp_path / "cache/workspaces/proofs.jsonl").read_text().splitlines()]
    assert {line["instance_id"]: line["proven"] for line in lines} == {"a": True, "b": True}


def test_the_last_line_says_what_is_used_without_a_proof(tmp_path, config, monkeypatch, capsys):
    rows = [record(name, source=SOURCE) for name in "abc"]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Graded(monkeypatch, {"a": False, "b": True, "c": True})
    assert job.run(config("sandbox=process", "env.unproven=keep"), None) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("2 of 3 instances are proven; 1 not proven and used all the same: a; proofs: ")
    assert said[-3] == "1 of 3 instances are not proven:" and said[-2].startswith("  a: with its gold patch")


def test_the_last_line_names_ten_and_counts_the_rest(tmp_path, config, monkeypatch, capsys):
    names = [f"n{number:02}" for number in range(13)]
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps(record(name, source=SOURCE)) for name in names))
    Graded(monkeypatch, dict.fromkeys(names, False) | {"n12": True})
    assert job.run(config("sandbox=process"), None) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("1 of 13 instances are proven; 12 left out (env.unproven=skip): n00, ")
    assert "n09 and 2 more, named above; proofs: " in last


def test_nothing_that_can_be_used_is_an_error(tmp_path, config, monkeypatch, capsys):
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps(record(name, source=SOURCE)) for name in "abc"))
    Graded(monkeypatch, dict.fromkeys("abc", BuildError("no network")))
    assert job.run(config("sandbox=process"), None) == 1
    assert "0 of 3 instances are proven" in capsys.readouterr().out


def test_two_revisions_of_the_hub_are_not_mixed(tmp_path, config, monkeypatch):
    revisions = iter(["aaa", "bbb"])

    def load(dataset, split, *, revision, key):
        name = "a" if split == "train" else "b"
        return LoadedRows([PlacedRecord("row", record(name))], dataset, next(revisions))

    monkeypatch.setattr(reading, "load_rows", load)
    words = ["env.dataset=you/data", "env.split=train", "env.eval_split=test"]
    with pytest.raises(
        InstanceError, match=r"train of you/data was prepared from revision aaa.*at bbb now.*env\.revision=aaa"
    ):
        job.run(config(*words), None)
