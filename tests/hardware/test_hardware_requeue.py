"""Whether a job that is told to end is queued again, from what SLURM answers; and what is kept of it."""

import json
from datetime import datetime

import pytest

from swe_rl.hardware.slurm.jobs import JobView, current_allocation, parse_job
from swe_rl.hardware.slurm.requeue import (
    FRUITLESS_STARTS,
    NoProgressError,
    RequeueRecord,
    Survival,
    continues_run,
    read_record,
)
from swe_rl.host.program import Completed

LINE = (
    "JobId=12 JobName=a b=c UserId=me(1) Requeue=1 Restarts=3 JobState=RUNNING Reason=None Dependency=(null) "
    "PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=None Command=/a b/c JobState2=x"
)
JOB = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURMD_NODENAME": "n1"}


def shown(state="RUNNING", preempted="None", reason="None", restarts=0):
    return f"JobId=12 JobState={state} Reason={reason} Requeue=1 Restarts={restarts} PreemptTime={preempted}"


class Slurm:
    """Answers `show`, and keeps what it is asked to requeue. `then`: what `show` says after the first request that a
    signal ends; `signals`: how many it ends."""

    def __init__(self, text="", refusal="", then="", signals=0):
        self.text, self.refusal, self.then, self.signals, self.asked = text, refusal, then, signals, []

    def __call__(self, words, timeout_s, environ):
        if words[:2] == ["scontrol", "show"]:
            return Completed(0, self.text) if self.text else Completed(1, "", "Unable to contact slurm controller")
        self.asked.append(words[-1])
        if len(self.asked) <= self.signals:
            self.text = self.then or self.text
            return Completed(-15, "", "")
        return Completed(1, "", self.refusal) if self.refusal else Completed(0, "")


@pytest.fixture
def survive(tmp_path):
    def make(slurm=None, limit=2, restarts=0, step=0, begin=True, done=False, **environ):
        here = current_allocation({**JOB, "SLURM_RESTART_COUNT": str(restarts), **environ})
        one = Survival(
            tmp_path / "requeue.json", here, max_requeues=limit, run=slurm or Slurm(shown()), clock=lambda: 5.0
        )
        if begin:
            one.begin(step, done=done)
        return one

    make.path = tmp_path / "requeue.json"
    return make


@pytest.mark.parametrize(
    ("told", "text", "again"),
    [
        ("SIGUSR2", shown(), True),  # the warning ahead of the time limit, or scancel --signal
        ("SIGUSR1", shown(), True),
        ("SIGUSR2", "", True),  # the controller does not answer: asked all the same
        ("SIGTERM", shown(), False),  # by hand
        ("SIGTERM", "", False),
        ("SIGTERM", shown("TIMEOUT"), True),  # nobody had warned
        ("SIGTERM", shown("COMPLETING", reason="TimeLimit"), True),
        ("SIGTERM", shown("COMPLETING"), False),  # cancelled
        ("SIGTERM", shown(preempted="2026-01-01T00:00:00"), True),
        ("SIGTERM", shown("PREEMPTED"), True),
        ("SIGTERM", shown("CANCELLED"), False),
        ("SIGUSR2", shown("CANCELLED"), False),
    ],
)
def test_who_is_queued_again(survive, told, text, again):
    slurm = Slurm(text)
    verdict = survive(slurm).told_to_end(told)
    assert verdict.requeued is again and slurm.asked == (["12"] if again else [])
    assert told in verdict.reason


@pytest.mark.parametrize("text", [shown("PENDING"), shown("NODE_FAIL"), shown("COMPLETING", restarts=1)])
def test_what_slurm_queued_itself_is_not_asked_for(survive, text):
    slurm = Slurm(text)
    assert survive(slurm).told_to_end("SIGTERM").requeued and slurm.asked == []


def test_asked_once_a_start_however_often_told(survive):
    slurm = Slurm(shown())
    one = survive(slurm)
    assert one.told_to_end("SIGUSR2") is one.told_to_end("SIGTERM")
    assert slurm.asked == ["12"]


def ends(after_s):
    """What `show` says of a job that ends so long after the test's time."""
    return f"{shown()} EndTime={datetime.fromtimestamp(5 + after_s).isoformat()}"  # noqa: DTZ006 - as SLURM says it


@pytest.mark.parametrize(
    ("told", "text", "within_s"),
    [
        ("SIGUSR2", ends(300), 240.0),
        ("SIGUSR2", ends(9000), 300.0),
        ("SIGUSR1", f"{shown()} EndTime=Unknown", 120.0),
        ("SIGUSR2", "", 120.0),
        ("SIGUSR2", ends(50), None),  # no time
        ("SIGTERM", ends(300), None),
        ("SIGUSR2", shown("COMPLETING"), None),
    ],
)
def test_a_warning_leaves_time_for_the_runs_copy_before_slurm_is_asked(survive, told, text, within_s):
    slurm, copied = Slurm(text), []
    one = survive(slurm)
    for _ in range(2):
        one.told_to_end(told, lambda left_s: copied.append((left_s, list(slurm.asked))))
    assert copied == ([(within_s, [])] if within_s else [])


def test_the_budget_is_kept_on_the_disk(survive):
    for restarts in range(3):
        verdict = survive(limit=2, restarts=restarts, step=restarts).told_to_end("SIGUSR2")
        assert verdict.requeued is (restarts < 2)
    assert "hardware.max_requeues=2 is spent" in verdict.reason
    record = json.loads(survive.path.read_text())
    assert record["requeues"] == 2 and [one["step"] for one in record["starts"]] == [0, 1, 2]
    assert "(1 of 2)" in record["starts"][0]["told"]


def test_preemption_costs_nothing(survive):
    survive(Slurm(shown(preempted="now")), limit=0).told_to_end("SIGTERM")
    assert read_record(survive.path).requeues == 0


def test_a_refused_request_is_given_back_and_told(survive):
    verdict = survive(Slurm(shown(), refusal="Requested operation is presently\n disabled")).told_to_end("SIGUSR2")
    assert not verdict.requeued and "Requested operation is presently disabled" in verdict.reason
    assert read_record(survive.path).requeues == 0


PREEMPTED = shown(preempted="2026-01-01T00:00:00")


@pytest.mark.parametrize(
    ("then", "signals", "asked", "again"),
    [
        (shown("COMPLETING", restarts=1), 1, 1, True),  # the signal was SLURM's answer to the request
        (PREEMPTED, 1, 2, True),  # it came before the request
        (PREEMPTED, 9, 3, False),
    ],
)
def test_a_request_that_slurms_own_signal_ends(survive, then, signals, asked, again):
    slurm = Slurm(PREEMPTED, then=then, signals=signals)
    verdict = survive(slurm).told_to_end("SIGTERM")
    assert verdict.requeued is again and len(slurm.asked) == asked
    assert again or "scontrol ended with -15" in verdict.reason


def test_a_start_of_a_run_that_is_done_begins_the_row_anew(survive):
    for restarts in range(3 * FRUITLESS_STARTS):
        survive(restarts=restarts, step=4, done=restarts % 2 == 0)


def test_starts_that_finish_no_step_come_to_an_end(survive):
    for restarts in range(FRUITLESS_STARTS):
        survive(restarts=restarts, step=4)
    with pytest.raises(NoProgressError, match=r"3 times after step 4"):
        survive(restarts=FRUITLESS_STARTS, step=4)
    survive(restarts=FRUITLESS_STARTS + 1, step=5)  # by hand, with more time


def test_a_start_knows_its_own_run(survive):
    here = current_allocation({**JOB, "SLURM_RESTART_COUNT": "1"})
    assert not continues_run(None, here)
    assert not continues_run(RequeueRecord(here.key, requeues=1), here)  # told to end before its start was noted
    survive(restarts=0)
    record = read_record(survive.path)
    assert continues_run(record, here)
    assert not continues_run(record, current_allocation(JOB))  # a second run of the same start
    assert not continues_run(record, current_allocation({**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_CLUSTER_NAME": "d"}))
    assert not continues_run(record, current_allocation({**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "13"}))


def test_another_jobs_record_is_not_continued(survive):
    survive().told_to_end("SIGUSR2")
    assert survive(SLURM_JOB_ID="99").record.requeues == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "a"}', '{"job": "a", "requeues": 1, "starts": [{"x": 1}]}'])
def test_a_damaged_record_is_none(tmp_path, text):
    (tmp_path / "r").write_text(text)
    assert read_record(tmp_path / "r") is None


def test_an_arrays_element_is_asked_for_alone(survive):
    """`scontrol requeue 12` of an array 12 is about all of its elements."""
    slurm = Slurm(shown())
    survive(slurm, SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="3").told_to_end("SIGUSR2")
    assert slurm.asked == ["12_3"]


def test_no_job():
    assert current_allocation({}) is None and current_allocation({"SLURM_JOB_ID": " "}) is None


def test_scontrols_line():
    assert parse_job(LINE) == JobView("RUNNING", "None", False, 3)
    assert parse_job(LINE.replace("PreemptTime=None", "PreemptTime=2026-01-01T00:00:01")).preempted
    assert parse_job("slurm_load_jobs error: Invalid job id specified") is None
