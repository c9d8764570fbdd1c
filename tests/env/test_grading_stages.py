"""A row's script in two stages: the shell goes on, processes do not, and tests get twins in between."""

import re
import subprocess

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.grading.script_run import RowScript, TwinPlan, log_as_expected, session_of
from swe_rl.env.grading.stages import stages_of, with_session_names
from swe_rl.env.twins.make import TwinnedTests
from swe_rl.env.twins.session import Counted
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.support.pytest_alone import EXPORTED

TESTS = "def test_sum():\n    assert 1 + 2 == 3\n"
FORKS = "env -i bash -c 'go() { (go &); exit; }; go' left_behind & sleep 0.1"  # no process of it lives for long
SLEEPS = "env -i bash -c 'sleep 61; :' left_behind & disown"


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)


def test_the_second_stage_goes_on_in_the_first_ones_shell(tmp_path):
    setup = (
        f"#!/bin/bash\nset -u\nset -o pipefail\ncd {tmp_path}\nexport A='x y'\nb=(1 '2 3')\nsay() {{ echo said; }}\n"
    )
    tests = ": '>>>>> Start Test Output'\nsay\necho \"$A/${b[1]}/$PWD\"\nfalse | true || echo pipefail\necho $nothing\n"
    stages = stages_of(setup + tests, tmp_path.name)
    first = run(stages.setup)
    assert stages.came_to_an_end(first.stdout) and stages.without_end(first.stdout) == ""
    second = run(stages.tests)
    assert second.stdout == f"said\nx y/2 3/{tmp_path}\npipefail\n"
    assert "nothing: unbound variable" in second.stderr and second.returncode


def test_a_first_stage_that_ends_early_says_so(tmp_path):
    stages = stages_of("set -e\nfalse\n: '>>>>> Start Test Output'\ntrue\n", tmp_path.name)
    assert not stages.came_to_an_end(run(stages.setup).stdout)
    assert run(stages.tests).returncode == 97


@pytest.mark.parametrize(
    ("script", "setup"),
    [
        ("cd /testbed\npip install -e .\npython -m pytest -q tests\n", 2),
        ("cd /testbed\nPYTHONPATH=. ./tests/runtests.py app\necho done\n", 1),
        ("make check\n", None),
        ("if true; then\npytest tests\nfi\n", None),
        ("cat <<'E'\npytest tests\nE\n", None),
    ],
)
def test_tests_of_a_script_without_marks_begin_with_their_command(script, setup):
    stages = stages_of(script, "t")
    assert (stages and stages.setup.startswith("\n".join(script.split("\n")[:setup]) + "\n{")) == (setup and True)


def test_a_command_that_names_tests_runs_them_and_their_twins():
    names = TwinnedTests()
    names.session_names["test_a"] = "test_a_late_one"
    names.companions["test_a"] = ["test_a_odd_case", "test_a_any_case"]
    command = with_session_names("pytest 't.py::test_a[1 2]' t.py::test_b t.py\n", names)
    assert (
        command == "pytest 't.py::test_a_any_case' 't.py::test_a_late_one' 't.py::test_a_odd_case' t.py::test_b t.py\n"
    )
    left_out = with_session_names("pytest --deselect t.py::test_a[1] t.py\n", names)
    given = ("test_a_any_case", "test_a_late_one[1]", "test_a_odd_case")
    assert left_out == f"pytest {' '.join(f'--deselect t.py::{test}' for test in given)} t.py\n"


@pytest.fixture
async def graded(tmp_path):
    """Runs a script over a small tree with one test, in a sandbox of its own."""
    try:
        provider = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    (tmp_path / "tree" / "tests").mkdir(parents=True)
    (tmp_path / "tree" / "tests" / "test_sum.py").write_text(TESTS)
    base = commit_tree(tmp_path / "tree")
    counted = ("tests/test_sum.py::test_sum",)
    instance = Instance("a__b-1", "a/b", base, "text", "", "", counted, ())

    async def once(script, is_poisoned=False):
        plan = TwinPlan("seed", frozenset(), Counted(counted), is_poisoned)
        row = RowScript(instance, script, Workspace(path=tmp_path / "tree"), provider, 60.0)
        return await row.run(None, plan)

    yield once
    await provider.close()


SCRIPT = (
    f"#!/bin/bash\nset -ux\n{EXPORTED}cd /testbed\n"
    "BEFORE\n: '>>>>> Start Test Output'\nDURING\n: '>>>>> End Test Output'\n"
)
PYTEST = "python -m pytest -rA -p no:cacheprovider tests/test_sum.py"


async def test_an_installation_sees_no_twin_and_the_log_shows_none(graded):
    script = SCRIPT.replace("BEFORE", "cat tests/test_sum.py").replace("DURING", PYTEST)
    done = await graded(script)
    num_twins = len(done.names.twin_of)
    assert TESTS in done.result.output
    assert done.result.output.count("FAILED tests/test_sum.py::test_sum_") == num_twins > 0
    assert "PASSED tests/test_sum.py::test_sum\n" in done.log and "FAILED" not in log_as_expected(done)
    statuses = {f"tests/test_sum.py::{name}": "FAILED" for name in done.names.twin_of}
    right = [done.names.session_names["test_sum"], *done.names.copy_of]
    statuses |= {f"tests/test_sum.py::{name}": "PASSED" for name in right}
    session = session_of(statuses, done)
    assert session.tests == {"tests/test_sum.py::test_sum": "passed"} and session.passed_twins == frozenset()
    twin = next(iter(done.names.twin_of))
    forged = session_of({**statuses, f"tests/test_sum.py::{twin}": "PASSED"}, done)
    assert forged.passed_twins == {"test_sum"}


async def test_in_a_session_of_twins_alone_the_tests_themselves_have_to_fail(graded):
    script = SCRIPT.replace("BEFORE", "true").replace("DURING", PYTEST)
    done = await graded(script, is_poisoned=True)
    failed = {f"tests/test_sum.py::{name}": "FAILED" for name in re.findall(r"FAILED .*::(\w+)", done.result.output)}
    session = session_of(failed, done)
    assert session.twinned == {"test_sum"} and session.passed_twins == frozenset() and session.tests == {}
    chosen = done.names.session_names["test_sum"]
    others = {f"tests/test_sum.py::{name}": "FAILED" for name in done.names.twin_of if name != chosen}
    forged = session_of(others, done)
    assert forged.passed_twins == {"test_sum"}


@pytest.mark.parametrize("left", [SLEEPS, FORKS])
async def test_what_an_installation_left_running_is_ended_before_the_tests(graded, left):
    look = "grep -lsxz left_behind /proc/[0-9]*/cmdline || echo none"
    done = await graded(SCRIPT.replace("BEFORE", left).replace("DURING", look).replace("set -ux", "set -u"))
    assert "none\n" in done.log, done.log


async def test_times_do_not_tell_poisoned_files_from_others(tmp_path):
    """Both are written between the stages: else code would compare a test's file with what the installation wrote."""
    (tmp_path / "tree" / "checks").mkdir(parents=True)
    (tmp_path / "tree" / "checks" / "ops.js").write_text("assert.equal(add(1, 2), 3);\n")
    base = commit_tree(tmp_path / "tree")
    instance = Instance("a__b-1", "a/b", base, "text", "", "", ("checks/ops.js::add",), ())
    try:
        provider = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    script = SCRIPT.replace("BEFORE", "touch made").replace("DURING", "[ checks/ops.js -nt made ] && cat checks/ops.js")
    row = RowScript(instance, script, Workspace(path=tmp_path / "tree"), provider, 60.0)
    for plan in (None, TwinPlan("seed", frozenset(), Counted(instance.fail_to_pass), is_poisoned=True)):
        log = (await row.run(None, plan)).log
        assert "assert.equal(add(1, 2), " in log and ("2), 3)" in log) == (plan is None)
    await provider.close()
