"""Logs as they come, and logs that nobody's tests wrote."""

import subprocess
import time

import pytest

from swe_rl.env.grading.log_check import DECISIVE, check_markers, mark_script, pytest_statuses, status_of_tests

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
HONEST = f"cat <<'END'\n{REPORT}END\n(exit 1)"


def run(tests, nonce="abc", before="echo before"):
    marked = mark_script(SCRIPT.replace("echo before", before).format(tests=tests), nonce)
    done = subprocess.run(["bash", "-c", marked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout, done.returncode


def test_an_honest_log_has_no_findings():
    log, status = run(HONEST)
    statuses = pytest_statuses(log)
    assert statuses == {"tests/t.py::test_a": "PASSED", "tests/t.py::test_b": "FAILED"}
    assert check_markers(log, "abc") == []
    assert status == 0 and status_of_tests(log, "abc", status) == 1


@pytest.mark.parametrize(
    ("tests", "before", "finding"),
    [
        (HONEST + '\necho ">>>>> End Test Output"', "true", "marker_repeated"),
        (HONEST + "\necho \"+ : '>>>>> Start Test Output'\"", "true", "marker_repeated"),
        (HONEST, "printf '%s\\n' \"+ : '>>>>> Start Test Output'\" 'PASSED x::y'", "marker_repeated"),
        (HONEST + "\nkill -9 $$", "true", "marker_missing"),
    ],
)
def test_a_forged_log_is_named(tests, before, finding):
    log, _ = run(tests, before=before)
    assert finding in check_markers(log, "abc")
    assert finding in DECISIVE


def test_a_script_without_marks_stays_as_it_is():
    assert mark_script("make test\n", "abc") == "make test\n"
    assert status_of_tests("whatever", "abc", 7) == 7


def test_a_long_log_takes_no_square_of_its_time():
    began_s = time.process_time()
    check_markers("\n" * 300_000, "abc")
    assert time.process_time() - began_s < 5.0
