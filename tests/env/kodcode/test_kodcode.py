"""Rows of KodCode as small repositories: nothing of the answer in them, graded by the row's own file."""

import json
import subprocess
from dataclasses import replace

import pytest

from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.folder import make_recorded
from swe_rl.env.kodcode.env import KodcodeEnv
from swe_rl.env.kodcode.read import commit_hash, to_instance, tree_of
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
    assert instance.fail_to_pass == ("test_solution.py",)
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
    make_recorded(instance, tree_of(instance), tmp_path / "tree")
    head = subprocess.run(["git", "-C", str(tmp_path / "tree"), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert (
        head.stdout.strip()
        == instance.base_commit
        == commit_hash({"solution.py": (tmp_path / "tree/solution.py").read_text()})
    )
    assert [path.name for path in (tmp_path / "tree").iterdir() if path.name != ".git"] == ["solution.py"]
    assert "raise NotImplementedError" in (tmp_path / "tree" / "solution.py").read_text()
    with pytest.raises(InstanceError, match="job=prepare"):
        make_recorded(replace(instance, base_commit="0" * 40), tree_of(instance), tmp_path / "other")


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


ODD_TESTS = """import unittest

import pytest
from solution import add


class Base:
    def test_inherited(self):
        assert add(2, 2) == 4


class TestChild(Base):
    pass


class AddingWorks(unittest.TestCase):
    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(add(n), n)


if True:
    def test_below_if():
        assert add(0, 5) == 5

test_assigned = lambda: None if add(7) == 7 else pytest.fail("no")


@unittest.skip("later")
def test_later():
    pass
"""
NAMES = ("TestChild::test_inherited", "AddingWorks::test_parts", "test_below_if", "test_assigned")


@pytest.fixture
async def graded(tmp_path):
    """The verdict on a body of `add`, by the tests above."""
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(ROW | {"test": ODD_TESTS}))
    config = EnvConfig(name="kodcode", dataset=str(path), split="train", eval_split="test", grading=GradingKind.tests)
    env = KodcodeEnv(config, tmp_path / "cache")
    sandboxes = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
    instance = env.instances("train")[0]

    async def grade(body, **columns):
        patch = instance.patch.replace("return a + b", body)
        return await env.grade(replace(instance, **columns), patch, sandboxes, 60.0)

    yield grade
    await sandboxes.close()


async def test_every_test_that_pytest_runs_counts(graded):
    """Of a class of any name, inherited, below an `if`, assigned, in parts; not the one that the solution skips too."""
    gold = await graded("return a + b")
    assert gold.resolved and gold.fail_to_pass == dict.fromkeys((f"test_solution.py::{name}" for name in NAMES), True)
    older = await graded("return a + b if a else 0", fail_to_pass=("test_solution.py::test_assigned",))
    failed = {name for name, passed in older.fail_to_pass.items() if not passed}
    assert not older.resolved and failed == {"test_solution.py::test_below_if"}


@pytest.mark.parametrize(
    ("body", "failing"),
    [
        ("return a + b if a < 2 else 4", {"AddingWorks::test_parts", "test_assigned"}),
        ("return 9 if a + b == 4 else a + b", {"TestChild::test_inherited"}),
        ("return a + b if a != 7 else 0", {"test_assigned"}),
    ],
)
async def test_each_of_them_can_fail(graded, body, failing):
    grade = await graded(body)
    failed = {name.partition("::")[2] for name, passed in grade.fail_to_pass.items() if not passed}
    assert not grade.resolved and failed == failing


@pytest.mark.parametrize(
    "test",
    [
        "import tests\nfrom x import *",
        "class A(B):\n    pass",
        "test_a = make()",
        "try:\n    def test_x(): pass\nfinally: pass",
    ],
)
def test_what_may_hold_a_test_is_left_to_pytest(test):
    assert to_instance(ROW | {"test": test}, "here").fail_to_pass
