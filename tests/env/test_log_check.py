"""Logs as they come: the exit status of the tests, and what is printed before them."""

import subprocess

import pytest

from swe_rl.env.grading.log_check import (
    END,
    START,
    pytest_statuses,
    region_of,
    status_of_tests,
    with_status,
    without_marks,
)
from swe_rl.env.grading.script_run import status_without_companions
from swe_rl.env.grading.stages import runs_pytest_alone
from swe_rl.env.twins.make import TwinnedTests

SCRIPT = """#!/bin/bash
set -uxo pipefail
echo before
: '>>>>> Start Test Output'
{tests}
: '>>>>> End Test Output'
true
"""
REPORT = """============================= test session starts ==============================
=========================== short test summary info ============================
PASSED tests/t.py::test_a
FAILED tests/t.py::test_b - assert 1
========================= 1 failed, 1 passed in 0.12s ==========================
"""
HONEST = f"cat <<'END'\n{REPORT}END\n(exit 3)"


def test_a_script_says_how_its_tests_ended():
    marked = with_status(SCRIPT.format(tests=HONEST))
    done = subprocess.run(["bash", "-c", marked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    statuses = pytest_statuses(done.stdout)
    assert statuses == {"tests/t.py::test_a": "PASSED", "tests/t.py::test_b": "FAILED"}
    assert status_of_tests(marked, done.stdout, done.returncode) == 3


@pytest.mark.parametrize(
    ("tests", "end", "status"),
    [
        ("true", "false", 0),
        ("(exit 3)", "true", 3),
        ("(exit 3)", "exit 0", 3),
        ("trap 'exit 0' EXIT\n(exit 3)", "true", 3),
        ("(exit 3); status=$?", "exit $status", 3),
        ("set -e\n(exit 3)", "true", 3),
        ("exec bash -c 'exit 3'", "true", 3),
        ("exit 3", "true", 3),
    ],
)
def test_what_follows_the_tests_does_not_hide_that_they_failed(tests, end, status):
    script = with_status(f"{SCRIPT.format(tests=tests)}{end}\n")
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    assert done.returncode == status, done.stderr


def test_a_script_that_says_its_status_itself_stays_as_it_is():
    script = SCRIPT.format(tests="true") + "echo '>>>>> Test Exit Code: 4'\n"
    assert with_status(script) == script
    assert status_of_tests(script, "x\n>>>>> Test Exit Code: 4\n", 0) == 4


@pytest.mark.parametrize(
    ("says_it", "said", "exit_code", "status"),
    [
        (True, (0,), 0, 0),
        (True, (0, 1), 0, 1),
        (True, (1, 0), 0, 1),
        (True, (0,), 1, 0),  # what follows the tests
        (True, (0,), 137, 137),
        (True, (), 3, 3),
        (False, (0,), 1, 1),
        (False, (1,), 0, 0),
    ],
)
def test_a_status_that_tested_code_says_hides_no_failure(says_it, said, exit_code, status):
    script = SCRIPT.format(tests="true") + "echo '>>>>> Test Exit Code: '$x\n" * says_it
    log = "".join(f">>>>> Test Exit Code: {one}\n" for one in said)
    assert status_of_tests(script, log, exit_code) == status


def test_a_script_without_marks_stays_as_it_is():
    assert with_status("make test\n") == "make test\n"
    assert status_of_tests("make test\n", "whatever", 7) == 7


def test_nothing_before_the_tests_looks_like_their_output():
    forged = f"+ : '{START}'\nPASSED x::y\n+ : '{END}'\n"
    log = without_marks(forged) + f"+ : '{START}'\nFAILED x::y\n+ : '{END}'\n"
    assert "FAILED x::y" in region_of(log) and "PASSED" not in region_of(log)


@pytest.mark.parametrize(
    ("commands", "is_alone"),
    [
        ("python -m pytest -rA -p no:cacheprovider tests/test_a.py", True),
        ("PYTHONHASHSEED=0 .venv/bin/pytest tests\necho done", True),
        ("pytest tests || true", False),
        ("pytest tests\nmypy .", False),
        ("pytest tests > log", False),
        ("python -m unittest", False),
        ("tox -e pytest", False),
        ("", False),
    ],
)
def test_a_lone_pytest(commands, is_alone):
    assert runs_pytest_alone(SCRIPT.format(tests=commands)) is is_alone
    assert runs_pytest_alone(f"cd /testbed\ngit apply x\n{commands}") is is_alone
    assert not runs_pytest_alone(commands)


NAMES = TwinnedTests(
    twin_of={"test_a_both": "test_a", "test_a_odd": "test_a"}, copy_of={"test_a_long": "test_a"}, kept={"test_b"}
)


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        ("FAILED t.py::test_a_both - assert 1\nFAILED t.py::test_a_odd - assert 1", 1, 0),
        ("FAILED t.py::test_a_both\nFAILED t.py::test_a_odd\nFAILED t.py::test_a_long", 1, 0),
        ("FAILED t.py::test_a_both\nFAILED t.py::test_a_odd\nFAILED t.py::test_b", 1, 1),
        ("FAILED t.py::test_a_both", 1, None),
        ("FAILED t.py::test_a_both\nFAILED t.py::test_a_odd\n!!! stopping after 2 failures !!!", 1, None),
        ("FAILED t.py::test_a_both\nFAILED t.py::test_a_odd\nFAIL Required test coverage of 90% not reached", 1, None),
        ("", 1, None),
        ("", 0, 0),
        ("FAILED t.py::test_a_both\nFAILED t.py::test_a_odd", 0, None),
        ("FAILED t.py::test_b", 0, 1),
        ("ERROR t.py", 2, 2),
    ],
)
def test_the_status_without_twins_is_told_where_each_of_them_failed(lines, status, told):
    assert status_without_companions(f": '{START}'\n{lines}\n: '{END}'\n", status, NAMES) == told
