"""A run's frame: how it ended is on the disk, and the run's own error is what the caller sees."""

import asyncio
import json
import os
import signal
import time

import pytest

from swe_rl.config.composition.values import config_hash
from swe_rl.errors import RunError, UserError
from swe_rl.files.disk import write_text_atomic
from swe_rl.hardware.slurm.requeue import NoProgressError, Requeued
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import read_events
from swe_rl.report.page import run_payload
from swe_rl.run.session import open_session
from tests.support.ended_runs import leave, status, warn


def test_done(make, fresh):
    path = fresh()
    one = leave(make(), path)
    assert (status(path).status, status(path).exit_status, status(path).reason) == (RunState.done, 0, None)
    assert (path / "summary.json").is_file() and (path / "report.html").is_file()
    assert json.loads((path / "summary.json").read_text())["peak_memory_gb"] > 0
    assert [event["event"] for event in read_events(path / "events.jsonl")] == ["started", "stopped"]
    assert not one.folder.is_locked()


def test_what_is_wrong_with_a_training_is_said_recorded_and_in_the_report(make, fresh, capsys):
    path = fresh()
    RunFolder(path).create()
    row = {"step": 1, "updates": 0, "signal_rate": 0.0, "trained_rows": 0}
    write_text_atomic(RunFolder(path).steps_jsonl, json.dumps(row) + "\n")
    session = leave(make(), path)
    capsys.readouterr()
    session.print_end()
    assert "health: Nothing was learned: 1 of 1 steps left the policy as it was" in capsys.readouterr().out
    [event] = read_events(path / "events.jsonl", "health")
    assert event["about"] == "Nothing was learned" and event["reason"] == "all groups had equal rewards"
    assert event["threshold"] and "rollout.n" in event["keys"]
    assert run_payload(RunFolder(path))["health"][0]["about"] == "Nothing was learned"


def test_what_is_wrong_is_recorded_at_the_end_of_the_run_alone_and_once(make, fresh):
    path = fresh()
    RunFolder(path).create()
    row = {"step": 1, "updates": 0, "signal_rate": 0.0, "trained_rows": 0}
    write_text_atomic(RunFolder(path).steps_jsonl, json.dumps(row) + "\n")
    with pytest.raises(KeyboardInterrupt):
        leave(make(), path, KeyboardInterrupt())
    assert read_events(path / "events.jsonl", "health") == []
    leave(make("trainer.resume=auto"), path)
    assert len(read_events(path / "events.jsonl", "health")) == 1


@pytest.mark.parametrize(
    ("error", "state", "exit_status"),
    [
        (RunError("broke"), RunState.failed, 1),
        (UserError("wrong"), RunState.failed, 2),
        (KeyError("fault"), RunState.failed, 1),
        (KeyboardInterrupt(), RunState.interrupted, 130),
        (asyncio.CancelledError(), RunState.interrupted, 130),
    ],
)
def test_every_end_is_written_and_raised_on(make, fresh, error, state, exit_status, capsys):
    path = fresh()
    with pytest.raises(type(error)) as caught:
        leave(make(), path, error)
    assert caught.value is error
    assert f"run folder: {path}" in capsys.readouterr().out
    assert (status(path).status, status(path).exit_status) == (state, exit_status)
    assert (path / "report.html").is_file() and not RunFolder(path).is_locked()


def test_a_job_without_a_report(make, fresh):
    path = fresh()
    leave(make(), path, reports=False)
    assert status(path).status is RunState.done and not (path / "report.html").exists()


@pytest.mark.parametrize("failure", [OSError("full"), ValueError("a fault in the report")])
def test_a_report_that_fails_never_hides_the_runs_error(make, fresh, monkeypatch, failure):
    def fails(folder, ending=None, task_text=None):
        raise failure

    monkeypatch.setattr("swe_rl.report.page.write_report", fails)
    path = fresh()
    with pytest.raises(RunError, match="the real one"):
        leave(make(), path, RunError("the real one"))
    assert "the real one" in status(path).reason
    path = fresh("second")
    with pytest.raises(type(failure)):
        leave(make(), path)
    assert status(path).status is RunState.failed and str(failure) in status(path).reason


def test_a_disk_that_takes_no_report_ends_no_run(make, fresh, capsys):
    path = fresh()
    (path / "report.html").mkdir()
    leave(make(), path).print_end()
    assert status(path).status is RunState.done and (path / "summary.json").is_file()
    said = capsys.readouterr()
    assert f"{path / 'report.html'} is not written, and the run goes on without it" in said.err
    assert "report:" not in said.out


@pytest.mark.parametrize("reports", [True, False])
def test_an_end_that_cannot_be_written_names_the_files_that_there_would_be(make, fresh, capsys, reports):
    path = fresh()

    def then_fails(one):
        one.status.finish = lambda *_, **__: write_text_atomic(path / "events.jsonl" / "status.json", "")
        raise RunError("the real one")

    with (
        pytest.raises(RunError, match="the real one"),
        open_session(make(), path, total_steps=0, reports=reports) as one,
    ):
        then_fails(one)
    said = " ".join(capsys.readouterr().out.split())
    assert ("the summary and the report could not be written" in said) is reports
    assert ("how it ended could not be written" in said) is not reports and "status.json" in said


def test_a_run_is_done_when_its_report_is_there(make, fresh, monkeypatch):
    """Killed before, it is resumed: nobody would write its report else. The page says what it is about to be."""
    seen, config = [], make("trainer.resume=auto")

    def killed(name):
        if name in ("summary_written", "report_written"):
            seen.append((name, status(path).status, (path / "report.html").exists()))

    monkeypatch.setattr("swe_rl.run.session.kill_point", killed)
    path = fresh()
    leave(config, path)
    assert seen == [("summary_written", RunState.running, False), ("report_written", RunState.running, True)]
    assert status(path).status is RunState.done and '"label":"done"' in (path / "report.html").read_text()


def test_the_hash_is_in_the_status(make, fresh):
    path = fresh()
    leave(make(), path)
    assert status(path).config_hash == config_hash(make("trainer.resume=auto"))


def test_sigterm_ends_a_run_as_ctrl_c_does(make, fresh):
    path = fresh()
    with pytest.raises(KeyboardInterrupt), open_session(make(), path, total_steps=1):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
    assert status(path).status is RunState.interrupted
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_warned_job_is_queued_again_and_leaves_without_a_result(make, fresh, slurm):
    path = fresh()
    warn(make(), path)
    assert slurm.asked() == ["requeue 7"]
    found = status(path)
    assert (found.status, found.exit_status, found.step) == (RunState.requeued, 75, 3)
    assert "job 7 is queued again (1 of 4)" in found.reason


def test_what_fails_after_the_warning_is_continued_too(make, fresh, slurm):
    path = fresh()
    with pytest.raises(Requeued), open_session(make(), path, total_steps=1):
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(1.0)
        except KeyboardInterrupt:
            raise RunError("an engine got the signal too") from None
    assert status(path).status is RunState.requeued and "an engine got" in status(path).reason


def test_starts_that_get_nowhere_fail(make, fresh, slurm):
    path = fresh()
    for restarts in range(4):  # the first one gets to step 3
        slurm(restarts)
        warn(make(), path)
    slurm(4)
    with pytest.raises(NoProgressError):
        leave(make(), path)
    assert status(path).status is RunState.failed and "was started 3 times" in status(path).reason


@pytest.mark.parametrize("job", ["eval", "train"])
def test_an_evaluation_gets_on_by_its_trajectories_and_a_training_does_not(make, fresh, slurm, job):
    config, path = make(f"job={job}", "name=train"), fresh()
    for restarts in range(4):
        slurm(restarts)
        with pytest.raises(RunError) as raised:
            leave(config, path, RunError("broke"))
        assert isinstance(raised.value, NoProgressError) is (job == "train" and restarts == 3)
        with RunFolder(path).eval_trajectories(0).open("a") as file:
            file.write("{}\n")


def test_a_done_run_is_started_again_as_often_as_the_other_arms_of_its_job_need(make, fresh, slurm):
    path = fresh()
    for restarts in range(6):
        slurm(restarts)
        leave(make(), path)
    assert status(path).status is RunState.done and status(path).resumes == 5
    slurm(6)
    with pytest.raises(RunError, match="broke"):
        leave(make(), path, RunError("broke"))
    slurm(7)
    leave(make(), path)


def test_a_person_inside_an_allocation_may_start_as_often_as_they_like(make, fresh, slurm):
    config, path = make("trainer.resume=auto"), fresh()
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            leave(config, path, KeyboardInterrupt())


def test_a_server_is_not_queued_again(make, fresh, slurm):
    path = fresh()
    with pytest.raises(KeyboardInterrupt), open_session(make(), path, total_steps=0, reports=False):
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1.0)
    assert slurm.asked() == [] and not (path / "requeue.json").exists()


def test_ctrl_c_in_a_job_asks_for_nothing(make, fresh, slurm):
    path = fresh()
    with pytest.raises(KeyboardInterrupt):
        leave(make(), path, KeyboardInterrupt())
    assert slurm.asked() == [] and status(path).status is RunState.interrupted


def test_a_warning_is_said_again_beside_the_result(make, fresh, capsys):
    """Where it began, an hour of progress may have passed it by."""
    one = leave(make(), fresh())
    one.warn("warning: no isolation\n  because of this")
    one.warn("warning: no isolation\n  because of that")
    one.warn("a note that is no caveat")
    one.summary |= {"resolved_rate_before": 0.25, "resolved_samples_before": 8}
    one.summary |= {"resolved_rate_after": 0.5, "resolved_samples_after": 7}
    capsys.readouterr()
    one.print_end()
    assert capsys.readouterr().out.splitlines()[:3] == [
        "held-out resolved rate 25.0% -> 50.0% (+25.0 points), 8 and 7 samples",
        "warning: no isolation",
        f"run folder: {one.folder.path}",
    ]
