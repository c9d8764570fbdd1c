"""Rows of KodCode as small repositories: nothing of the answer in them, graded by the row's own file."""

import json
import subprocess
from dataclasses import replace

import pytest

from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.env.instance import InstanceError
from swe_rl.env.kodcode.env import KodcodeEnv, make_tree
from swe_rl.env.kodcode.read import commit_hash, to_instance
from swe_rl.sandbox.process.provider import ProcessProvider

ROW = {
    "version": "v1.0",
    "style": "instruct",
    "subset": "Algorithm",
    "question_id": "Algorithm_1_I",
    "question": "Add two numbers.",
    "solution": "def add(a: int, b: int = 0) -> int:\n    return a + b",
    "test": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n\nclass TestMore:\n"
    "    def test_zero(self):\n        assert add(1) == 1\n",
    "test_info": [
        {
            "docstring": "Adds.",
            "function_declaration": "def add(a, b=0):",
            "function_name": "add",
            "parameter_list": "(a, b=0)",
        }
    ],
    "gpt_difficulty": "easy",
}


def test_a_row():
    instance = to_instance(ROW, "here")
    assert instance.instance_id == "Algorithm_1_I" and instance.difficulty == "easy"
    assert instance.fail_to_pass == ("test_solution.py::test_add", "test_solution.py::TestMore::test_zero")
    assert "Add two numbers." in instance.problem_statement and "def add(a, b=0):" in instance.problem_statement
    assert "a + b" not in instance.problem_statement and "test_add" not in instance.problem_statement


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"solution": ""}, "column 'solution' is missing"),
        ({"test": "def test_x(:"}, "column 'test' is not Python"),
        ({"test": "x = 1"}, "column 'test' has no test"),
        ({"question_id": None}, "column 'question_id'"),
    ],
)
def test_a_bad_column_is_named(change, words):
    with pytest.raises(InstanceError, match=f"file, row 3: {words}"):
        to_instance(ROW | change, "file, row 3")


def test_a_trainers_row_and_the_older_column():
    older = {key: value for key, value in ROW.items() if key not in ("test", "test_info")} | {"test_code": ROW["test"]}
    instance = to_instance({"data_source": "kodcode", "prompt": [], "extra_info": older}, "here")
    assert instance.hints_text == "def add(a: int, b: int=0) -> int" and instance.fail_to_pass


def test_the_tree_is_the_one_whose_hash_is_known_without_git(tmp_path):
    instance = to_instance(ROW, "here")
    make_tree(instance, tmp_path / "tree")
    head = subprocess.run(["git", "-C", str(tmp_path / "tree"), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert (
        head.stdout.strip()
        == instance.base_commit
        == commit_hash({"solution.py": (tmp_path / "tree/solution.py").read_text()})
    )
    assert [path.name for path in (tmp_path / "tree").iterdir() if path.name != ".git"] == ["solution.py"]
    assert "raise NotImplementedError" in (tmp_path / "tree" / "solution.py").read_text()
    with pytest.raises(InstanceError, match="job=prepare"):
        make_tree(replace(instance, base_commit="0" * 40), tmp_path / "other")


async def test_the_solution_resolves_and_the_stub_does_not(tmp_path):
    rows = [ROW, ROW | {"question_id": "x", "test": "nothing"}, ROW | {"question_id": "y", "test_info": None}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = EnvConfig(
        name="kodcode",
        dataset=str(tmp_path / "mine.jsonl"),
        split="train[1:]",
        eval_split="train[:1]",
        grading=GradingKind.tests,
    )
    env = KodcodeEnv(config, tmp_path / "cache")
    assert [instance.instance_id for instance in env.instances("train[1:]")] == ["y"]
    instance = env.instances("train[:1]")[0]
    sandboxes = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
    try:
        gold = await env.grade(instance, instance.patch, sandboxes, 60.0)
        noop = await env.grade(instance, "", sandboxes, 60.0)
    finally:
        await sandboxes.close()
    assert gold.resolved and len(gold.fail_to_pass) == 2 and not noop.resolved
