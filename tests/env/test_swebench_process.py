"""The official harness in its own process: answers, refusals, and a log that never ends."""

import json
import os
from pathlib import Path

import pytest

from swe_rl.env.env import GradeError
from swe_rl.env.grading import swebench_process
from swe_rl.env.grading.swebench_process import OfficialHarness, UnreadableLogError

pytest.importorskip("swebench", reason="needs the extra swebench")
ROW = json.loads((Path(__file__).parent / "data" / "swebench_row.json").read_text())
LOG = (
    "+ : '>>>>> Start Test Output'\nsympy/printing/tests/test_conventions.py[2]\ntest_super_sub {first}\n"
    "test_requires_partial ok\n= tests finished: 2 passed, in 0.10 seconds =\n+ : '>>>>> End Test Output'\n"
    ">>>>> Test Exit Code: {status}\n"
)


@pytest.fixture(scope="module")
def harness():
    one = OfficialHarness(timeout_s=120)
    yield one
    one.close()


def ask(harness, log):
    return harness.ask({"ask": "report", "record": ROW, "patch": "x", "log": log})


def test_the_official_words(harness):
    spec = harness.ask({"ask": "spec", "record": ROW})
    assert ">>>>> Test Exit Code" in spec["eval_script"]
    assert spec["apply_commands"][0] == "git apply --verbose" and "--fuzz=5" in spec["apply_commands"][-1]
    good = ask(harness, LOG.format(first="ok", status=0))
    assert good["report"]["resolved"] and good["resolution"] == "RESOLVED_FULL"
    bad = ask(harness, LOG.format(first="F", status=1))
    assert not bad["report"]["resolved"] and bad["resolution"] == "RESOLVED_NO"
    assert bad["report"]["tests_status"]["PASS_TO_PASS"]["success"] == ["test_requires_partial"]


def test_a_crash_before_the_tests_is_unresolved_with_a_hint(harness):
    answer = ask(harness, "Cannot connect to the Docker daemon\n")
    assert not answer["report"]["resolved"] and answer["report"]["infra_failure_reason"] == "container_unavailable"


def test_an_unknown_reader_is_refused_in_words(harness):
    with pytest.raises(GradeError, match="log_parser='nobody'"):
        harness.ask({"ask": "spec", "record": {**ROW, "log_parser": "nobody"}})


def test_a_harness_that_hangs_is_ended_and_started_anew():
    one = OfficialHarness(timeout_s=0.001)
    with pytest.raises(UnreadableLogError):
        one.ask({"ask": "spec", "record": ROW})
    assert one._process is None
    one.close()


def test_it_sees_none_of_this_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary")
    assert "canary" not in swebench_process._worker_environment().values() and "PATH" in os.environ
