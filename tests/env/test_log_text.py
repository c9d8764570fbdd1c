"""What a log calls failed: each runner's words for a test, a part of one, and its end."""

import time

import pytest

from swe_rl.env.grading.log_check import pytest_statuses, with_failures
from swe_rl.env.grading.log_text import failed_names, failing_lines, strip_escapes
from swe_rl.env.swe.r2e_gym import parse_log

RULER = "=" * 70


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("FAILED t/test_a.py::test_x - assert 0", "t/test_a.py::test_x"),
        ("FAILED t/test_a.py::test_x[a b - c] - assert 0", "t/test_a.py::test_x[a b - c]"),
        ("ERROR t/test_a.py::test_x - assert 0", "t/test_a.py::test_x"),
        ("FAILED t/test_a.py::test_x - [XPASS(strict)]\r", "t/test_a.py::test_x"),
        ("SUBFAIL t/test_a.py::T::test_x - AssertionError: 1 != 0", "t/test_a.py::T::test_x"),
        ("[i is] (i=1) SUBFAIL t/test_a.py::T::test_x - AssertionError", "t/test_a.py::T::test_x"),
        ("SUBFAILED[i is] (i=1) t/test_a.py::T::test_x - AssertionError", "t/test_a.py::T::test_x"),
        ("SUBFAILED(i=1) t/test_a.py::T::test_x[a b]", "t/test_a.py::T::test_x[a b]"),
        ("SUBFAILED(path='u/test_b.py::test_y') t/test_a.py::test_x - no", "t/test_a.py::test_x"),
        ("SUBERROR(i=1) t/test_a.py::test_x", "t/test_a.py::test_x"),
        ("t/test_a.py::test_x SUBFAILED(i=1)                [ 37%]", "t/test_a.py::test_x"),
        ("[gw0] [ 37%] SUBFAILED(i=1) t/test_a.py::test_x ", "t/test_a.py::test_x"),
    ],
)
def test_pytests_words(said, name):
    assert name in failed_names(f"PASSED t/test_a.py::test_x\n{said}\nPASSED t/test_a.py::test_x\n")


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("FAIL: test_x (a.T) (i=1)\n" + "-" * 70, {"test_x (a.T)"}),
        ("ERROR: test_x (a.T.test_x) [why] (i=1, j='(')\n" + "-" * 70, {"test_x (a.T.test_x)"}),
        ("FAIL: test_x (a.T)\nCounts to three.\n" + "-" * 70, {"test_x (a.T)", "Counts to three."}),
        ("UNEXPECTED SUCCESS: test_x (a.T)\n" + "-" * 70, {"test_x (a.T)"}),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_unittests_words(said, names, end):
    log = f"test_x (a.T) ... ok\n{RULER}\n{said}\nTraceback\n".replace("\n", end)
    assert set(failing_lines(log)) == {f"{name} ... FAIL" for name in names}


def test_what_is_no_failure_of_a_test_is_none():
    """Passed, skipped and expected ones; a program's own log; a word in a sentence; a headline without its ruler."""
    log = (
        "PASSED t.py::a\nXFAIL t.py::b\nXPASS t.py::c\nSUBPASSED(i=1) t.py::d\nSUBSKIPPED(i=1) [1] t.py:7: x\n"
        "SUBXFAIL t.py::d\n"
        "ERROR    root:t.py:5 gone\nFAILED to connect\nERROR t/test_b.py\nERROR:\nFAIL: test_x (a.T)\n"
        "RERUN t.py::a\n"
    )
    assert failing_lines(log) == []


def test_failures_come_last_and_before_the_end():
    end = "+ : '>>>>> End Test Output'"
    log = f"+ : '>>>>> Start Test Output'\nSUBFAILED(i=1) t.py::a - x\nPASSED t.py::a\n{end}\nafter\n"
    lines = with_failures(log).split("\n")
    assert lines[-4:] == ["FAILED t.py::a - x", end, "after", ""]
    assert with_failures("PASSED t.py::a\n") == "PASSED t.py::a\n"
    assert with_failures("FAILED t.py::a\nPASSED t.py::a") == "FAILED t.py::a\nPASSED t.py::a\nFAILED t.py::a"
    outside = log.replace("SUBFAILED(i=1) t.py::a - x\n", "") + "FAILED t.py::a\n"
    assert with_failures(outside) == outside  # as pip may say it, before or after the tests


@pytest.mark.parametrize(
    ("coloured", "text"),
    [
        ("\x1b[32mPASSED\x1b[0m t.py::\x1b[1mx\x1b[0m", "PASSED t.py::x"),
        ("\x1b[38;5;1m\x1b[KFAILED\x1b[m\x1b(B t.py::y", "FAILED t.py::y"),
        ("\x1b]8;;http://a/b\x07t.py\x1b]8;;\x1b\\::z", "t.py::z"),
        ("no [32m escape, and é", "no [32m escape, and é"),
    ],
)
def test_escapes_of_a_terminal_go(coloured, text):
    assert strip_escapes(coloured) == text


HEAD = "=========================== short test summary info ============================\n"


def test_ids_with_blanks_are_whole_and_cut():
    log = f"{HEAD}PASSED t.py::x[a b]\nPASSED t.py::x[Int64 - NA]\nFAILED t.py::y[c d] - assert 'c d'\n"
    statuses = pytest_statuses(log)
    assert statuses["t.py::x[a b]"] == statuses["t.py::x[Int64 - NA]"] == statuses["t.py::x[a"] == "PASSED"
    assert statuses["t.py::y[c d]"] == statuses["t.py::y[c"] == "FAILED"


def test_r2e_gym_keeps_all_that_follows_the_file():
    log = (
        f"{HEAD}PASSED r2e_tests/test_1.py::A::test_t[datetime64[ns, UTC]]\n"
        "PASSED r2e_tests/test_1.py::test_x[a::b c]\n"
        "FAILED r2e_tests/test_1.py::test_y[p q] - Error: 1 - 2\nXFAIL r2e_tests/test_1.py::test_z - later\n"
        "PASSED r2e_tests/test_1.py::test_sub\nSUBFAILED[m] (i=1) r2e_tests/test_1.py::test_sub - no\n"
    )
    assert parse_log(log) == {
        "A.test_t[datetime64[ns, UTC]]": "PASSED",
        "test_x[a.b c]": "PASSED",
        "test_y[p q]": "FAILED",
        "test_z": "XFAIL",
        "test_sub": "FAILED",
    }


@pytest.mark.parametrize(
    "text",
    ["SUBFAIL " + "a::" * 300_000, "a " * 500_000 + "SUBFAIL x", "\x1b]" * 300_000, f"{RULER}\nFAIL: " + "x" * 900_000]
    + [f"{RULER}\nFAIL: " * 20_000, "a" * 900_000 + "SUBFAIL" + "a" * 900_000, "FAILED " + " - " * 300_000 + "::"],
)
def test_a_long_log_takes_no_square_of_its_time(text):
    began_s = time.process_time()
    failed_names(strip_escapes(text))
    assert time.process_time() - began_s < 5.0
