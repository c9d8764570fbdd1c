"""Bugs that are put into a release: which are kept, what an agent sees of them, and which tests are hidden."""

import asyncio
from dataclasses import replace

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.hidden_tests import without_tests
from swe_rl.env.mining.mutants import SoundRelease, bugs_of
from swe_rl.env.mining.split import CountedRuns, RunBudget
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.env.protocol import SuiteRun

CODE = "def low(a, b):\n    return min(a, b)\n\n\ndef is_less(a, b):\n    return a < b\n"
TEST_FILE = '''from summer import is_less, low


class TestLow:
    def test_low(self):
        """The smaller of two."""
        assert low(1, 2) == 1


def test_less():
    assert is_less(1, 2)


@staticmethod
def test_more():
    assert not is_less(2, 1)
'''
SOUND = Instance(
    "summer__summer-1.1-sound",
    "index/summer",
    "c" * 40,
    "s",
    NOOP_PATCH,
    "t",
    (),
    (),
    source=Source("s-1", python="3.11"),
)
RELEASE = SoundRelease(
    TaskCandidate("summer-1.1", "summer", SOUND, licence="MIT"),
    {"summer.py": CODE, "tests/test_summer.py": TEST_FILE, "setup.py": CODE, "docs/conf.py": CODE},
    "pytest -rA",
)
OTHERS = ("no_file::test_a", "summary")
ALL = ("tests/test_summer.py::TestLow::test_low", "tests/test_summer.py::test_less", "tests/test_summer.py::test_more")


def hunt(fails, number=5, runs=50, release=RELEASE):
    """Returns the candidates where `fails(patch)` names the tests that a patch breaks."""
    asked = []

    async def run(instance, patch, timeout_s):
        asked.append((patch, timeout_s))
        return SuiteRun({test: test not in fails(patch) for test in (*ALL, *OTHERS)})

    return asyncio.run(bugs_of(release, SOUND, CountedRuns(run, RunBudget(runs, 1e6)), number)), asked


def low_fails(patch):
    return ALL[:1] if "max(" in patch else ()


def test_a_bug_that_a_test_shows_is_a_task_and_its_test_is_hidden():
    (found,), asked = hunt(low_fails)
    row = found.instance
    assert row.instance_id.startswith("summer__summer-1.1-bug-") and row.source.reverse and found.licence == "MIT"
    assert "-    return max(a, b)" in row.patch and "+    return min(a, b)" in row.patch
    assert "+class TestLow:" in row.test_patch and "test_less" not in row.test_patch.replace(" def test_less", "")
    assert "- The smaller of two." in row.problem_statement and "min" not in row.problem_statement
    assert row.source.test_command == "pytest -rA" and row.is_unmeasured
    touched = {line for patch, _ in asked for line in patch.split("\n") if line.startswith("+++")}
    assert touched == {"+++ b/.changed_nothing", "+++ b/summer.py"}  # no test, and nothing that only builds
    assert [limit for patch, limit in asked if patch == NOOP_PATCH] == [None, None]
    assert all(limit >= 20 for patch, limit in asked if patch != NOOP_PATCH)  # an endless loop is not waited for
    assert hunt(low_fails)[0][0].instance == row


def test_a_bug_of_an_inner_function_is_one_task():
    code = "def limited(c):\n    def low(a, b):\n        return min(a, b)\n\n    return low\n"
    release = replace(RELEASE, files={**RELEASE.files, "summer.py": code})
    found, _ = hunt(low_fails, release=release)
    assert len({candidate.instance.instance_id for candidate in found}) == len(found) == 1


@pytest.mark.parametrize("failing", [(), ("no_file::test_a",), ("summary",)])
def test_a_bug_that_no_function_of_a_file_shows_is_none(failing):
    (found,), _ = hunt(lambda patch: () if patch == NOOP_PATCH else failing)
    assert found.reason is Reason.no_bug and "runs of tests" in found.detail


def test_a_release_whose_tests_all_fail_has_no_bug_put_in():
    (found,), asked = hunt(lambda patch: (*ALL, *OTHERS))
    assert found.reason is Reason.unrunnable and len(asked) == 2


def test_a_budget_that_ends_keeps_what_was_found():
    found, asked = hunt(lambda patch: ALL[1:2] if patch != NOOP_PATCH else (), runs=3)
    assert len(asked) == 3 and [candidate.reason for candidate in found] == [None]
    (nothing,), _ = hunt(low_fails, runs=2)
    assert nothing.reason is Reason.no_bug


def test_hidden_tests_go_with_their_decorators_and_empty_classes():
    left = without_tests(TEST_FILE, ["TestLow::test_low", "test_more"])
    assert left == "from summer import is_less, low\n\n\ndef test_less():\n    assert is_less(1, 2)\n"
    two = "class TestA:\n    x = 1\n\n    def test_a(self):\n        pass\n"
    assert without_tests(two, ["TestA::test_a"]) == "class TestA:\n    x = 1\n"


@pytest.mark.parametrize("names", [["test_none"], ["TestLow::test_other"], ["TestLow"]])
def test_what_cannot_be_hidden_is_no_judge(names):
    assert without_tests(TEST_FILE, names) is None
    assert without_tests("def test_a(:", ["test_a"]) is None
