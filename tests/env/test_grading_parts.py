"""Tests that fail in a part, in a real sandbox: subtests, ends, ids with blanks, coloured logs, and exit statuses."""

import dataclasses

import pytest

from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.env import TRICKS
from swe_rl.env.folder import patch_between
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.grading.swebench import suite_by_swebench
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.support.pytest_alone import EXPORTED

BASE = "def double(n):\n    return n\n\n\ndef end():\n    return 0\n"
GOLD = BASE.replace("return n", "return 2 * n")
PART = "def double(n):\n    return 2 * n if n < 2 else 99\n\n\ndef end():\n    return 0\n"  # right for some subtests
END = GOLD.replace("return 0", "return 1")  # only the end of a test sees it
TESTS = """import unittest

import pytest
from counting import double, end


class TestParts(unittest.TestCase):
    def test_parts(self):
        for n in range(3):
            with self.subTest("number", n=n):
                self.assertEqual(double(n), 2 * n)


@pytest.fixture
def closing():
    yield
    assert end() == 0


def test_end(closing):
    assert double(0) == 0


@pytest.mark.parametrize("n", [1], ids=["one and - one"])
def test_blanks(n):
    assert double(n) == 2


def test_other():
    raise OSError("no network")
"""
FILE = "tests/test_counting.py"
FILES = {"counting.py": BASE, FILE: TESTS, "pytest.ini": "[pytest]\naddopts = --color=yes\n"}
NAMES = ("TestParts::test_parts", "test_end", "test_blanks[one and - one]")
RUN = f"python -m pytest -rpsxXEf -p no:cacheprovider {FILE}"  # failures last
REVERSED = f"python -m pytest -rfExXsp -p no:cacheprovider {FILE}"  # passes last: the last word of a test is PASSED


@pytest.fixture
async def sandboxes(tmp_path):
    provider = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    yield provider
    await provider.close()


def made(tmp_path, tests=RUN, **columns):
    """An instance of the files above whose script runs `tests`."""
    folder = tmp_path / "tree"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    script = (
        f"#!/bin/bash\nset -uxo pipefail\n{EXPORTED}: '>>>>> Start Test Output'\n{tests}\n: '>>>>> End Test Output'\n"
    )
    instance = Instance(
        instance_id=f"parts__{tmp_path.name}",
        repo="local/parts",
        base_commit=commit_tree(folder),
        problem_statement="double does not.",
        patch=patch_between(FILES, FILES | {"counting.py": GOLD}),
        test_patch="",
        fail_to_pass=(f"{FILE}::{NAMES[0]}", f"{FILE}::{NAMES[2]}"),
        pass_to_pass=(f"{FILE}::{NAMES[1]}",),
        eval_script=script,
        log_parser="parse_log_pytest",
        eval_type="pass_and_fail",
    )
    return dataclasses.replace(instance, **columns), Workspace(path=folder)


def changed(text):
    return patch_between(FILES, FILES | {"counting.py": text})


CUT = {"fail_to_pass": (f"{FILE}::{NAMES[0]}", f"{FILE}::test_blanks[one")}
DOTTED = {
    "fail_to_pass": ("TestParts.test_parts", "test_blanks[one and"),
    "pass_to_pass": ("test_end",),
    "log_parser": "r2e_gym",
}


@pytest.mark.parametrize(
    ("tests", "columns"),
    [
        pytest.param(RUN, CUT, id="failures last, harness", marks=pytest.mark.slow),
        pytest.param(RUN, DOTTED, id="failures last, r2e_gym", marks=pytest.mark.slow),
        pytest.param(REVERSED, CUT, id="passes last, harness", marks=pytest.mark.slow),  # where the last word misleads
        pytest.param(REVERSED, DOTTED, id="passes last, r2e_gym", marks=pytest.mark.slow),
    ],
)
async def test_a_part_that_fails_fails_its_test_by_the_log(tmp_path, sandboxes, columns, tests):
    if columns is CUT:
        pytest.importorskip("swebench")
    instance, workspace = made(tmp_path, tests, **columns)

    async def verdict(patch):
        grade = await grade_by_eval_script(instance, patch, workspace, sandboxes, 60.0)
        assert TRICKS.isdisjoint(grade.findings), (grade.findings, grade.log_tail)
        return grade

    gold = await verdict(instance.patch)
    assert gold.resolved and "\x1b" not in gold.log, gold.log_tail
    part = await verdict(changed(PART))
    assert not part.resolved and part.fail_to_pass == {instance.fail_to_pass[0]: False, instance.fail_to_pass[1]: True}
    end = await verdict(changed(END))
    assert not end.resolved and end.pass_to_pass == {instance.pass_to_pass[0]: False}


async def test_a_part_that_fails_fails_its_test_in_a_session(tmp_path, sandboxes):
    instance, workspace = made(tmp_path)
    gold = await grade_by_pytest(instance, instance.patch, workspace, sandboxes, 60.0)
    assert gold.resolved, gold.log_tail
    part = await grade_by_pytest(instance, changed(PART), workspace, sandboxes, 60.0)
    assert not part.resolved and not part.fail_to_pass[f"{FILE}::{NAMES[0]}"]


async def test_lists_are_measured_with_the_parts(tmp_path, sandboxes):
    pytest.importorskip("swebench")
    instance, workspace = made(tmp_path, REVERSED)
    base = await suite_by_swebench(instance, "", workspace, sandboxes, 60.0)
    fixed = await suite_by_swebench(instance, instance.patch, workspace, sandboxes, 60.0)
    test = f"{FILE}::{NAMES[0]}"
    assert not base.passed[test] and fixed.passed[test] and base.passed[f"{FILE}::test_end"]


ALL_PASS = f"{RUN} --deselect {FILE}::test_other"


@pytest.mark.parametrize(
    ("tests", "columns"),
    [pytest.param(f"{ALL_PASS}; (exit 3)", DOTTED, marks=pytest.mark.slow), (f"{RUN} || true", CUT)],
)
async def test_a_suite_that_always_ends_so_can_be_solved(tmp_path, sandboxes, tests, columns):
    """The harness itself believes no log whose tests all pass with a status that says otherwise."""
    pytest.importorskip("swebench")
    instance, workspace = made(tmp_path, tests, **columns)
    gold = await grade_by_eval_script(instance, instance.patch, workspace, sandboxes, 60.0)
    assert gold.resolved and gold.findings == (), gold.log_tail
    part = await grade_by_eval_script(instance, changed(PART), workspace, sandboxes, 60.0)
    assert not part.resolved


@pytest.mark.slow
async def test_a_runner_that_is_no_python_can_be_solved_by_its_status(tmp_path, sandboxes):
    check = "grep -q '2 [*] n$' counting.py"
    instance, workspace = made(tmp_path, check, log_parser="")
    gold = await grade_by_eval_script(instance, instance.patch, workspace, sandboxes, 60.0)
    assert gold.resolved and gold.findings == (), gold.log_tail
    part = await grade_by_eval_script(instance, changed(PART), workspace, sandboxes, 60.0)
    assert not part.resolved
