"""Logs that no reader can read: tested code wrote them, so the attempt failed, and nobody's machine did."""

import asyncio
import dataclasses
import random

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import GradeError
from swe_rl.env.grading import swebench_process, swebench_worker
from swe_rl.env.grading.apply import Applied
from swe_rl.env.grading.log_check import pytest_statuses
from swe_rl.env.grading.script_run import ScriptRun
from swe_rl.env.grading.swebench import _grade_of_log, suite_by_swebench
from swe_rl.env.grading.swebench_process import HarnessDiedError, OfficialHarness, UnreadableLogError
from swe_rl.env.grading.swebench_spec import LOG_PARSERS, complete_instance
from swe_rl.env.swe.r2e_gym import parse_log
from swe_rl.sandbox.sandbox import ExecResult, Workspace
from tests.support.scripted_sandbox import ScriptedProvider

pytest.importorskip("swebench", reason="needs the extra swebench")
TEST_PATCH = "diff --git a/t/tests.py b/t/tests.py\n--- a/t/tests.py\n+++ b/t/tests.py\n@@ -1 +1 @@\n-a\n+b\n"
ROW = Instance("a__b-1", "a/b", "c" * 40, "It fails.", "p", TEST_PATCH, ("test_a (t.T)",), ("test_b (t.T)",))
WORDS = (
    *("PASSED", "FAILED", "ERROR", "SKIPPED", "FAIL:", "ERROR:", "ok", "not ok", "--- FAIL:", "test_a", " ... ", " - "),
    *("[1]", "::", "(", ")", "✓", "✕", "1)", "{", "}", '"', "# tests 1", "Tests:", "\x1b[31m", "\t", "\r", "\0", "1"),
    *("Executed 1 of 1", "test result:", "\ud800", "Ran 1 test in 0.1s", "\u2028", "=" * 70, "<testcase", "9" * 400),
)


@pytest.fixture(scope="module")
def harness():
    one = OfficialHarness(timeout_s=120)
    yield one
    one.close()


def judged(log, parser, harness):
    """The verdict of `env.grading=swebench` on a run that printed `log`."""
    row = dataclasses.replace(complete_instance(ROW), log_parser=parser, eval_script="true")
    run = ScriptRun(Applied(True, (), "", 0.0), ExecResult(0, log, False, 0, 1.0), log=log)
    return asyncio.run(_grade_of_log(row, row.to_record(), run, harness))


def between(words):
    return f"+ : '>>>>> Start Test Output'\n{words}\n+ : '>>>>> End Test Output'\n"


@pytest.mark.parametrize("words", ["FAIL:", "  ERROR:  ", "FAIL: \nERROR: x"])
def test_a_bare_word_of_a_status_is_the_patchs_failure(harness, words):
    grade = judged(between(f"{words}\ntest_a (t.T) ... ok\ntest_b (t.T) ... ok"), "parse_log_django", harness)
    assert grade.findings == ("log_unreadable",) and not grade.resolved
    assert grade.fail_to_pass == {"test_a (t.T)": False} and grade.patch_applied


@pytest.mark.parametrize("parser", sorted(LOG_PARSERS))
def test_no_reader_makes_a_log_an_error_of_the_grader(parser):
    """Noise of the words that readers look for: a report, or the word that the log cannot be read."""
    rng = random.Random(parser)
    record = dataclasses.replace(complete_instance(ROW), log_parser=parser, eval_script="true").to_record()
    noise = ["\n".join("".join(rng.choices(WORDS, k=rng.randrange(4))) for _ in range(80)) for _ in range(3)]
    for words in ("", "\n".join(WORDS), *noise):
        request = {"ask": "report", "record": record, "log": between(words)}
        answer = swebench_worker._answer_request(request)
        assert "unreadable" in answer or not answer["report"]["resolved"]
        assert isinstance(pytest_statuses(words) | parse_log(words), dict)


@pytest.mark.parametrize(
    "error", [IndexError("x"), RecursionError("deep"), MemoryError(), UnicodeDecodeError, KeyError(1)]
)
@pytest.mark.parametrize("ask", ["report", "tests"])
def test_whatever_a_reader_raises_is_said_as_its_own(monkeypatch, error, ask):
    from swebench.harness.log_parsers import PARSER_REGISTRY

    def reader(log, spec):
        raise error if isinstance(error, Exception) else error("utf-8", b"\xff", 0, 1, "no")

    monkeypatch.setitem(PARSER_REGISTRY, "parse_log_pytest", reader)
    record = dataclasses.replace(complete_instance(ROW), eval_script="true").to_record()
    answer = swebench_worker._answer_request({"ask": ask, "record": record, "log": between("PASSED a")})
    assert set(answer) == {"unreadable"}
    broken = swebench_worker._answer_request({"ask": ask, "record": {}, "log": ""})
    assert set(broken) == {"error"}  # the row's fault is none of the log's


class Dying(OfficialHarness):
    """A process that ends instead of answering, `times` times."""

    def __init__(self, times):
        super().__init__(timeout_s=120)
        self.left = times

    def _exchange(self, line):
        self.left -= 1
        if self.left >= 0:
            raise HarnessDiedError("dead")
        return super()._exchange(line)


def test_a_log_that_kills_the_readers_process_twice_is_unreadable():
    once, twice = Dying(1), Dying(2)
    log = between("test_a (t.T) ... ok\ntest_b (t.T) ... ok\n\nRan 2 tests in 0.1s")
    assert judged(log, "parse_log_django", once).resolved
    assert judged(log, "parse_log_django", twice).findings == ("log_unreadable",)
    once.close()
    twice.close()


async def test_measuring_says_that_the_log_cannot_be_read(harness, monkeypatch):
    def answers(command):
        if "mktemp" in command.command:
            return "/tmp/x"
        return ExecResult(0, between("ERROR:"), False, 0, 0.1) if "script.sh" in command.command else ""

    row = dataclasses.replace(ROW, repo="django/django", version="3.0")
    suite = await suite_by_swebench(row, "x", Workspace(image="i"), ScriptedProvider(answers), 60.0, harness)
    assert suite.passed == {} and suite.log.endswith(
        "cannot read the log of the tests: IndexError: list index out of range"
    )


def test_other_errors_of_the_harness_stay_no_verdict(harness):
    with pytest.raises(GradeError) as caught:
        harness.ask({"ask": "report", "record": {}, "log": ""})
    assert not isinstance(caught.value, UnreadableLogError | swebench_process.HarnessDiedError)
