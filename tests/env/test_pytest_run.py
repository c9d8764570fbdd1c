"""A verdict needs a session that ended and a line that names the test."""

import pytest

from swe_rl.env.grading.pytest_run import passed_tests, suite_command

REPORT = """..F
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two
FAILED tests/test_a.py::test_three - assert 1 == 2
1 failed, 2 passed in 0.01s
"""


def test_a_finished_session_is_read_test_by_test():
    assert passed_tests(REPORT, 1) == {
        "tests/test_a.py::test_one": True,
        "tests/test_a.py::test_two": True,
        "tests/test_a.py::test_three": False,
    }


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, 124, 137, -9])
def test_a_session_that_did_not_end_passes_nothing(exit_code):
    assert passed_tests(REPORT, exit_code) == {}


def test_a_failure_in_a_session_that_claims_success_passes_nothing():
    assert passed_tests(REPORT, 0) == {}


def test_lines_before_the_summary_do_not_count():
    assert passed_tests("PASSED tests/test_a.py::test_one\n", 0) == {}


def test_only_the_files_of_the_tests_are_run():
    assert suite_command(("tests/b.py::x", "tests/a.py::y", "tests/a.py::z")).endswith("tests/a.py tests/b.py")
