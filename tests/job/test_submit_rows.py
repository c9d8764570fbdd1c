"""A job of a sweep from what the disk and the queue say of it, and the table of all of them."""

import json
import os
import socket
import sys
from contextlib import suppress

import pytest

from swe_rl.hardware.slurm.jobs import JobState, Queue, queue_states
from swe_rl.host.program import Completed, NoAnswerInTime
from swe_rl.logger.folder import RunState, RunStatus
from swe_rl.submission.record import NoSubmission, Submission, SubmittedJob, read_submission, write_submission
from swe_rl.submission.rows import JobOutcome, last_step, outcome_of, plain_rows, sweep_rows
from swe_rl.submission.table import describe_failures, format_table, watch_rows

WAITS, RUNS = JobState(Queue.WAITS, "PENDING", "Resources"), JobState(Queue.RUNS, "RUNNING")
GONE, UNKNOWN = JobState(Queue.GONE, "TIMEOUT"), JobState(Queue.UNKNOWN)


def status(state):
    return RunStatus(RunState(state))


@pytest.mark.parametrize(
    ("disk", "queue", "outcome"),
    [
        (None, WAITS, "pending"),
        (None, RUNS, "starting"),
        (None, GONE, "died"),
        (None, UNKNOWN, "unknown"),
        (None, None, "unknown"),
        ("running", RUNS, "running"),
        ("running", WAITS, "requeued"),
        ("running", GONE, "died"),
        ("running", UNKNOWN, "running"),
        ("requeued", WAITS, "requeued"),
        ("requeued", RUNS, "starting"),
        ("requeued", GONE, "died"),
        ("done", RUNS, "ending"),
        ("done", GONE, "done"),
        ("done", UNKNOWN, "done"),
        ("failed", GONE, "failed"),
        ("failed", WAITS, "requeued"),
        ("interrupted", GONE, "interrupted"),
    ],
)
def test_outcome(disk, queue, outcome):
    assert outcome_of(status(disk) if disk else None, queue, alive=True) is JobOutcome(outcome)


def test_a_run_without_a_queue_lives_as_long_as_somebody_holds_its_folder():
    assert outcome_of(status("running"), None, alive=True) is JobOutcome.running
    assert outcome_of(status("running"), None, alive=False) is JobOutcome.died


def answering(squeue="", sacct="", code=0, stderr=""):
    def run(command, timeout_s, environ):
        if command[0] == "squeue":
            return Completed(code, squeue, stderr)
        return Completed(0 if sacct else 1, sacct, "disabled")

    return run


def test_the_queue_is_asked_once_for_all_jobs():
    asked = []

    def run(command, timeout_s, environ):
        asked.append(command)
        return answering("7_0|RUNNING|None\n7_1|PENDING|JobArrayTaskLimit\n9|COMPLETED|None\n")(command, 0, {})

    found = queue_states(["7_0", "7_1", "9"], run)
    assert len(asked) == 1 and "--jobs=7,9" in asked[0]
    assert {name: one.where for name, one in found.items()} == {"7_0": "runs", "7_1": "waits", "9": "gone"}
    assert found["7_1"].reason == "JobArrayTaskLimit"


def test_what_the_queue_forgot_accounting_may_know():
    found = queue_states(["7_0", "7_1"], answering("7_0|RUNNING|None\n", sacct="7_1|CANCELLED by 0|0:15\n"))
    assert found["7_1"] == JobState(Queue.GONE, "CANCELLED")
    gone = queue_states(["7"], answering(code=1, stderr="slurm_load_jobs error: Invalid job id specified"))
    assert gone == {"7": JobState(Queue.GONE)}


def test_a_cluster_without_accounting_leaves_a_job_gone():
    def run(command, timeout_s, environ):
        if command[0] == "sacct":
            return None
        return Completed(0, "", "")

    assert queue_states(["7"], run) == {"7": JobState(Queue.GONE)}


def test_a_controller_that_does_not_answer_leaves_every_job_unknown():
    def silent(command, timeout_s, environ):
        raise NoAnswerInTime(command)

    assert queue_states(["7"], silent) == {"7": JobState(Queue.UNKNOWN)}
    refused = answering(code=1, stderr="Unable to contact slurm controller (connect failure)")
    assert queue_states(["7"], refused) == {"7": JobState(Queue.UNKNOWN)}


@pytest.fixture
def sweep(tmp_path):
    """Two jobs: one running at step 2 of 5, one that was killed with a word."""
    jobs = tuple(SubmittedJob(n, str(n), ("a=1", f"trainer.seed={n}"), f"7_{n}") for n in (0, 1))
    submission = Submission("submitit_slurm", jobs, ("slurm/jobs.sh",))
    write_submission(tmp_path, submission)
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = {"status": "running", "step": 2, "heartbeat": 90.0, "host": socket.gethostname()}
        (folder / "status.json").write_text(json.dumps(values))
        (tmp_path / "frozen" / "jobs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "frozen" / "jobs" / f"{number}.json").write_text('{"trainer.steps": 5}')
    (tmp_path / "0" / "steps.jsonl").write_text(
        '{"step": 1}\n{"step": 2, "tokens_per_s": 10.4, "reward_mean": 0.25}\n{"st'
    )
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "slurm-7_1.err").write_text("Started: 'step'\nslurmstepd: error: Detected 1 oom_kill event\n")
    return tmp_path


SEEN = answering("7_0|RUNNING|None\n7_1|OUT_OF_MEMORY|OutOfMemory\n")


def test_rows_of_a_sweep(sweep):
    first, second = sweep_rows(sweep, read_submission(sweep), 100.0, SEEN)
    assert (first.outcome, first.step, first.steps, first.tokens_per_s, first.reward) == ("running", 2, 5, 10.4, 0.25)
    assert first.silent_s == 10.0 and first.label == "trainer.seed=0"
    assert second.outcome is JobOutcome.died and second.silent_s is None
    assert second.note == "SLURM: OUT_OF_MEMORY (OutOfMemory). slurmstepd: error: Detected 1 oom_kill event"


def test_table_and_failures(sweep):
    rows = sweep_rows(sweep, read_submission(sweep), 100.0, SEEN)
    lines = format_table(rows)
    assert lines[0].split() == ["job", "SLURM", "state", "step", "response", "tokens/s", "reward", "heard"]
    assert lines[1].split()[:6] == ["0", "7_0", "running", "2/5", "10", "0.250"]
    assert lines[-1] == "1 running, 1 died"
    text = "\n".join(describe_failures(rows[1:]))
    assert "job 1 (trainer.seed=1), SLURM 7_1: died: SLURM: OUT_OF_MEMORY" in text and "0 of 1 job done" in text


def test_a_big_sweep_is_folded_to_what_moves(tmp_path):
    jobs = tuple(SubmittedJob(n, str(n), (f"s={n}",), f"7_{n}") for n in range(64))
    lines = "".join(f"7_{n}|{'RUNNING|None' if n == 5 else 'PENDING|JobArrayTaskLimit'}\n" for n in range(64))
    rows = sweep_rows(tmp_path, Submission("x", jobs), 0.0, answering(lines))
    shown = format_table(rows, fold=True)
    assert len(shown) == 3 and shown[1].startswith("5 ")
    assert shown[-1] == "63 pending (JobArrayTaskLimit), 1 starting"
    assert len(format_table(rows)) == 66


def test_the_state_of_servers_that_wait_is_shown(tmp_path):
    job = SubmittedJob(0, "0", (), "7", {"runtime0": "8"})
    run = answering("7|RUNNING|None\n8|PENDING|Priority\n")
    [row] = sweep_rows(tmp_path, Submission("x", (job,)), 0.0, run)
    assert row.note == "runtime0 PENDING (Priority)"


def test_a_torn_or_missing_steps_file_has_no_last_step(tmp_path):
    assert last_step(tmp_path / "none") == {}
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1}')
    assert last_step(path) == {}
    path.write_text('{"step": 1}\nnonsense\n')
    assert last_step(path) == {"step": 1}


def test_runs_that_nobody_submitted_have_rows_too(sweep):
    rows = plain_rows([sweep / "0", sweep / "1"], 100.0)
    assert [row.outcome for row in rows] == ["died", "died"], "nobody holds their folders"
    (sweep / "1" / "status.json").write_text(json.dumps({"status": "running", "host": "another"}))
    assert plain_rows([sweep / "1"], 100.0)[0].outcome == "running", "whose locks are not seen here"


def test_a_folder_without_a_record_is_named(tmp_path):
    with pytest.raises(NoSubmission, match=r"no readable submission\.json"):
        read_submission(tmp_path)


def test_watching_ends_with_the_last_job_and_prints_what_changed(sweep, capsys):
    states = iter(
        ["PENDING|Resources", "PENDING|Resources", "PENDING|Priority", "RUNNING|None", "FAILED|NonZeroExitCode"]
    )
    pauses = []

    def look():
        state = next(states)
        return sweep_rows(sweep, read_submission(sweep), 100.0, answering(f"7_0|{state}\n7_1|COMPLETED|None\n"))

    watch_rows(look, sys.stdout, sleep=pauses.append)
    text = capsys.readouterr().out
    assert text.count("job  SLURM") == 4, "one table a change"
    assert "Resources" in text and "Priority" in text
    assert pauses == pytest.approx([0.5, 0.575, 0.5, 0.5]), "longer and longer, until something changes"


def all_of(reader):
    """What came through a terminal whose other end is closed."""
    parts = []
    with suppress(OSError):  # its way of saying that there is no more
        while part := os.read(reader, 1 << 16):
            parts.append(part)
    os.close(reader)
    return b"".join(parts).decode()


def test_on_a_terminal_the_table_is_redrawn_and_the_last_one_stays(sweep, monkeypatch):
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    states = iter(["PENDING|Resources", "RUNNING|None", "FAILED|NonZeroExitCode"])

    def look():
        lines = f"7_0|{next(states)}\n7_1|COMPLETED|None\n"
        return sweep_rows(sweep, read_submission(sweep), 100.0, answering(lines))

    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as console:
        watch_rows(look, console, sleep=lambda _: None)
    text = all_of(reader)
    last = text.rpartition("job  SLURM")[2]
    assert "Resources" in text and "\x1b[" in text, "it was redrawn"
    assert last.count("died") == 3 and "\x1b" not in last, "both jobs and their count, once, without control codes"


def test_a_console_that_went_away_ends_no_watching(sweep, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    reader, writer = os.pipe()
    os.close(reader)
    looks = []

    def look():
        looks.append(1)
        state = "RUNNING|None" if len(looks) < 3 else "FAILED|x"
        return sweep_rows(sweep, read_submission(sweep), 100.0, answering(f"7_0|{state}\n7_1|FAILED|x\n"))

    console = os.fdopen(writer, "w")
    watch_rows(look, console, sleep=lambda _: None)
    with suppress(BrokenPipeError):
        console.close()
    assert len(looks) == 3
