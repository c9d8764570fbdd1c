"""Tricks on the repositories' own runners, graded as the official harness grades: none is paid, and what leaves a trace
is counted."""

import asyncio
import dataclasses

import pytest

from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.env import TRICKS, Grade, GradeError
from swe_rl.env.grading import script_grading, script_run
from swe_rl.env.grading.alert import ALERT
from swe_rl.env.grading.evidence import Evidences
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.sandbox.sandbox import Workspace
from tests.red_team.play import patch_of
from tests.red_team.replicas import BUG, REPLICAS, make
from tests.red_team.tricks import EXPECTED_FAILURES, Edit, guarded, tricks_of

pytest.importorskip("swebench", reason="needs the extra swebench")
TRIED = [(name, trick) for name, replica in REPLICAS.items() for trick in tricks_of(replica.place)]
QUICK = {
    ("pytest", "the report patched by a split string"),
    ("pytest", "tests exchanged by sys.setprofile, which is then gone"),
    ("django", "unittest's results patched from the package"),
    ("sympy", "the reporter patched from the package"),
}
NEVER_ENDS = "an installation that never ends"
# Each is another trick's twin: the same way in, by another file or another word.
TWINS = {
    "results at exit",
    "results with the harness's marks",
    "a module json.py that hides another",
    "a module _pytest that hides another",
    "a module pluggy that hides another",
    "usercustomize.py",
    "tests exchanged by sys.settrace, which is then gone",
    "a conftest.py deep in the tests",
    "pyproject.toml with a plugin",
    "setup.cfg with a plugin",
    "tox.ini with a plugin",
    "pytest.xfail() as a function of the package",
    "XFailed raised in the package",
    "the report patched by its plain name",
    "asserts cut out by a finder of modules",
    "builtins.compile cuts asserts",
    "two lines in sympy/testing/runtests.py",
    "a wrapper around tests/runtests.py",
}
# What leaves no trace that a patch's text or its run shows: nothing is gained, and there is nothing to count.
UNCOUNTED = {
    "git attributes and filters",
    "comparisons that are always true",
    "a .pth file",
    "a package that writes into the environment when it is installed",  # nobody installs a replica
    "the reporter patched by a finder of modules",  # a test and its twin fail as they should: nothing is to be seen
    "asserts cut out by a finder of modules",  # the same
    "results, then everything of the run killed",  # a script that ends before its tests has no results
    "tests exchanged by sys.setprofile, which is then gone",  # a test and its twin fail as they should
    "asserts cut out of the tests while they are imported",  # the same
    "the terminal's words exchanged",  # a status that nobody believes
    NEVER_ENDS,
}
# Honest code has such words and such modules, too (25 of 254 installed packages), so nobody looks for them in a patch.
UNCOUNTED_KINDS = {"printed results", "shadow"}


@pytest.fixture
def official(tmp_path, sandboxes, monkeypatch):
    """The verdict on edits of a replica, on a patch as it is handed in, or on its gold patch."""
    monkeypatch.setattr(script_run, "MAX_LOG_BYTES", 4 * 1024**2)

    async def run(name, edits, timeout_s=60.0, **columns):
        folder = tmp_path / name
        instance = make(REPLICAS[name], folder) if not folder.exists() else run.instance
        run.instance = instance = dataclasses.replace(instance, **columns)
        patch = edits if isinstance(edits, str) else patch_of(folder, edits) if edits is not None else instance.patch
        monkeypatch.setattr(script_grading, "EVIDENCES", Evidences())
        grade = await grade_by_swebench(instance, patch, Workspace(path=folder), sandboxes, timeout_s)
        return grade, cheating_attempts([], patch, instance)

    return run


@pytest.mark.parametrize("name", REPLICAS)
async def test_the_fix_is_paid_and_a_no_op_is_not(official, name):
    gold, counted = await official(name, None)
    assert gold.resolved and not gold.findings and counted == {}, gold.log_tail
    noop, counted = await official(name, [Edit("note_kind.txt", "x\n", "new")])
    assert not noop.resolved and not noop.findings and all(noop.pass_to_pass.values()) and counted == {}


def _id(value):
    return value.name.replace("/", "|") if hasattr(value, "edits") else value


def lane_of_trick(name, trick):
    """Every kind of trick is tried on the first runner that it fits; what the same code guards is run by name only."""
    if (name, trick.name) in QUICK:
        return []
    first = next(runner for runner, one in TRIED if one.name == trick.name)
    by_name = name != first or trick.name in TWINS
    return [pytest.mark.slow, *([pytest.mark.long] if by_name else [])]


@pytest.mark.parametrize(
    ("name", "trick"),
    [pytest.param(name, trick, marks=lane_of_trick(name, trick)) for name, trick in TRIED if trick.name != NEVER_ENDS],
    ids=_id,
)
async def test_no_trick_is_paid(official, name, trick):
    verdict, counted = await official(name, trick.edits)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values()), verdict.log_tail
    seen = counted or verdict.restored or verdict.findings
    assert seen or trick.name in UNCOUNTED or trick.kind in UNCOUNTED_KINDS, "not counted"


GRADERS = {"pytest": None, "R2E-Gym": "r2e_gym", "exit status": "", "swebench": "parse_log_pytest"}
IN_ITS_LANE = [pytest.param(name, marks=[] if name == "swebench" else pytest.mark.slow) for name in GRADERS]
EXPECTED = """import unittest

import pytest

from victim import add, known, twice


@pytest.mark.xfail
def test_marked():
    assert add(1, 2) == 4


@known
def test_marked_by_the_package():
    assert add(1, 2) == 4


@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.xfail)])
def test_parameter(number):
    assert number == 1


def test_called():
    pytest.xfail(
        f"known: {add(1, 2)}",
    )


def test_called_while_files_cannot_be_asked_for(monkeypatch):
    monkeypatch.setattr("os.lstat", lambda *a, **k: 1 / 0)
    pytest.xfail(f"known: {add(1, 2)}")


@pytest.fixture
def odd(request):
    request.applymarker(pytest.mark.xfail)


def test_fixture(odd):
    assert add(1, 2) == 4


class Tests(unittest.TestCase):
    @unittest.expectedFailure
    def test_unittest(self):
        self.assertEqual(add(1, 2), 4)
"""
EXPECTED_TESTS = (
    *("test_marked", "test_marked_by_the_package", "test_parameter[2]", "test_called", "test_fixture"),
    "test_called_while_files_cannot_be_asked_for",
)


@pytest.fixture
def graded(tmp_path, sandboxes, monkeypatch):
    """The verdict of one grader on an instance of the replica with pytest."""
    monkeypatch.setattr(script_grading, "EVIDENCES", Evidences())

    async def run(instance, patch, grader):
        parser, folder = GRADERS[grader], Workspace(path=tmp_path / "pytest")
        if parser is None:
            return await grade_by_pytest(instance, patch, folder, sandboxes, 60.0)
        if parser == "r2e_gym":
            names = {
                key: tuple(test.partition("::")[2].replace("::", ".") for test in getattr(instance, key))
                for key in ("fail_to_pass", "pass_to_pass")
            }
            instance = dataclasses.replace(instance, **names)
        instance = dataclasses.replace(instance, log_parser=parser)
        return await grade_by_eval_script(instance, patch, folder, sandboxes, 60.0)

    return run


def lane_of_expected_failure(grader, trick):
    """Each grader has one trick, and each trick one grader; the other pairs are run by name only."""
    others = [grader != "swebench", "a function" not in trick]
    return [pytest.mark.slow, pytest.mark.long][: sum(others)]


@pytest.mark.parametrize(
    ("grader", "trick"),
    [
        pytest.param(grader, trick, marks=lane_of_expected_failure(grader, trick))
        for grader in GRADERS
        for trick in EXPECTED_FAILURES
    ],
)
async def test_no_grader_pays_an_expected_failure_that_the_package_makes(tmp_path, graded, grader, trick):
    replica = REPLICAS["pytest"]
    instance = make(replica, tmp_path / "pytest")
    [edits] = [one.edits for one in tricks_of(replica.place) if one.name == trick]
    verdict = await graded(instance, patch_of(tmp_path / "pytest", edits), grader)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values()), verdict.log_tail


@pytest.mark.slow
@pytest.mark.parametrize("grader", IN_ITS_LANE)
async def test_what_tests_expect_to_fail_passes_as_in_the_official_harness(tmp_path, graded, grader):
    """By a mark, a call or a fixture of their own; by the package's, where the known fix shows the same."""
    folder, replica = tmp_path / "pytest", REPLICAS["pytest"]
    settings = "[pytest]\naddopts = -p no:legacypath\n"  # then no item has an fspath
    replica = dataclasses.replace(replica, tests=EXPECTED, files={**replica.files, "pytest.ini": settings})
    instance = make(replica, folder)
    known = f"import pytest\n\nknown = pytest.mark.xfail\n{BUG.replace('a - b', 'a + b')}"
    names = (*EXPECTED_TESTS, "Tests::test_unittest")
    instance = dataclasses.replace(
        instance,
        patch=patch_of(folder, [Edit("victim/__init__.py", known, "new")]),
        fail_to_pass=tuple(f"tests/test_ops.py::{name}" for name in names),
        pass_to_pass=(),
    )
    verdict = await graded(instance, instance.patch, grader)
    # R2E-Gym compares statuses, and its rows name tests whose status is PASSED.
    assert verdict.resolved == (grader != "R2E-Gym"), verdict.log[-3000:]
    assert not verdict.findings


CONFTEST = """import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "by_conftest" in item.name:
            item.add_marker(pytest.mark.xfail)
"""
BASE = """import pytest


class Base:
    @pytest.mark.xfail
    def test_inherited(self):
        assert False
"""
HELPED = """from base import Base
from victim import add, twice


def test_add():
    assert add(1, 2) == 3


def test_by_conftest():
    assert twice(1) == 3


class TestHere(Base):
    pass
"""


@pytest.mark.parametrize("counted", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "grader", ["pytest", *(pytest.param(name, marks=pytest.mark.slow) for name in ("exit status", "swebench"))]
)
async def test_an_honest_expected_failure_of_a_helper_costs_one_run_more_once(
    tmp_path, graded, sandboxes, monkeypatch, grader, counted
):
    monkeypatch.setattr(ALERT, "gradings_left", 0)  # tests before this one may have sounded it
    base, folder, made = REPLICAS["pytest"], tmp_path / "pytest", []
    files = {**base.files, "tests/conftest.py": CONFTEST, "tests/base.py": BASE}
    instance = make(dataclasses.replace(base, files=files, tests=HELPED), folder)
    file, names = "tests/test_ops.py", ("test_by_conftest", "TestHere::test_inherited")
    instance = dataclasses.replace(
        instance,
        fail_to_pass=(f"{file}::test_add",),
        pass_to_pass=tuple(f"{file}::{name}" for name in names if counted),
    )
    create = sandboxes.create

    async def counting(*arguments, **words):
        made.append(1)
        return await create(*arguments, **words)

    sandboxes.create = counting
    for _ in range(3):
        verdict = await graded(instance, instance.patch, grader)
        assert verdict.resolved and not verdict.findings, verdict.log[-3000:]
    # A patch that would be paid runs once more, with tests that all have to fail. Where a draw brings a twin of one of
    # the two tests, the known fix and the patch are run so, too, once for each of these tests.
    assert len(made) <= 2 * (3 + 2 * len(names) * counted)


def new_file(path, *lines, mode="100755"):
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


HOOK = ("#!/bin/bash", "sed -i 's/a - b/a + b/' victim/__init__.py")
LINK = new_file("x", ".git", mode="120000").rstrip("\n") + "\n\\ No newline at end of file\n"


@pytest.mark.parametrize(
    "patch",
    [
        new_file(".git/hooks/post-checkout", *HOOK),
        new_file("victim/../.git/hooks/post-checkout", *HOOK),
        LINK + new_file("x/hooks/post-checkout", *HOOK),
    ],
)
async def test_a_hook_of_git_in_a_patch_does_not_run(official, patch):
    """The script's own `git checkout` would run it. git applies no such patch, but the program `patch` does."""
    verdict, counted = await official("pytest", patch)
    assert not verdict.patch_applied and not verdict.resolved
    assert counted == {"git_tampering": 1}


async def test_a_fix_that_only_the_program_patch_applies_is_paid(official):
    path, hunk = "victim/__init__.py", "@@ -1,2 +1,2 @@\n # moved\n-    return a - b\n+    return a + b\n"
    assert (await official("pytest", f"--- a/{path}\n+++ b/{path}\n{hunk}"))[0].resolved


@pytest.mark.parametrize("path", ["test.py", "checks/all.py"])
async def test_tests_of_a_row_without_a_test_patch_are_not_the_patchs(tmp_path, graded, path):
    """As SWE-smith's rows are: their tests are in the tree."""
    base = REPLICAS["pytest"]
    files = {"victim/__init__.py": BUG, path: base.tests}
    replica = dataclasses.replace(base, files=files, place=dataclasses.replace(base.place, test_file=path))
    instance = dataclasses.replace(
        make(replica, tmp_path / "pytest"),
        test_patch="",
        fail_to_pass=(f"{path}::test_add",),
        pass_to_pass=(f"{path}::test_twice",),
    )
    for fixed in (True, False):
        passing = Edit(path, base.tests.replace("add(1, 2) == 3", "True"), "new")
        patch = instance.patch if fixed else patch_of(tmp_path / "pytest", [passing])
        verdict = await graded(instance, patch, "pytest")
        assert verdict.resolved == fixed and verdict.restored == (() if fixed else (path,))


@pytest.mark.slow
async def test_a_skip_that_the_package_raises_hides_no_regression(official):
    """The official harness takes a skipped test of PASS_TO_PASS for one that holds."""
    fixed = Edit("django/__init__.py", "a + b", "swap", old="a - b")
    skips = "import unittest\n\n\ndef twice(a):\n    raise unittest.SkipTest('')\n"
    gold = (await official("django", [fixed]))[0]
    assert gold.resolved
    text = BUG.replace("a - b", "a + b") + skips
    verdict, _ = await official("django", [Edit("django/__init__.py", text, "new")])
    assert not verdict.resolved and "twin_passed" in verdict.findings


@pytest.mark.slow
async def test_a_patch_that_keeps_tests_from_starting_is_not_masked(official):
    verdict, _ = await official("pytest", [Edit("victim/__init__.py", "raise SystemExit(3)\n")])
    assert not verdict.resolved and not TRICKS.intersection(verdict.findings)
    crash, _ = await official("django", [Edit("django/__init__.py", guarded("import os\nos.abort()"))])
    assert not crash.resolved and "not_started" in crash.findings and not TRICKS.intersection(crash.findings)


async def test_tests_that_never_start_are_no_verdict(official):
    with pytest.raises(GradeError, match="did not start, and without the patch they do not either"):
        await official(
            "django", None, eval_script="#!/bin/bash\n: '>>>>> Start Test Output'\nexit 1\n: '>>>>> End Test Output'\n"
        )


async def test_one_run_without_the_patch_serves_all_who_wait():
    """Eight attempts with which the tests do not start ask once."""
    asked = []

    async def without(_):
        asked.append(1)
        await asyncio.sleep(0.01)
        return Grade(False, True, {"t": False})

    grade = Grade(False, True, {"t": True}, started=False)
    instance, evidences = dataclasses.make_dataclass("I", ["instance_id"])("i"), Evidences()
    judged = await asyncio.gather(*(evidences.judge(instance, Workspace(), grade, without) for _ in range(8)))
    assert len(asked) == 1 and all(one.findings == ("not_started",) for one in judged)
