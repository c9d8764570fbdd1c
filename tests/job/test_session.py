"""A run's frame: how it ended is on the disk, and the run's own error is what the caller sees."""

import asyncio
import json
import os
import shutil
import signal
import threading
import time

import pytest

from swe_rl.config.compose import compose, config_hash
from swe_rl.errors import RunError, UserError
from swe_rl.hardware.slurm.requeue import NoProgressError, Requeued
from swe_rl.logger.disk import write_text_atomic
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import read_events
from swe_rl.run.session import session
from swe_rl.run.which_folder import choose_folder


@pytest.fixture
def make(tmp_path):
    """A configuration that writes below `tmp_path`."""

    def config(*overrides):
        return compose([f"paths.outputs={tmp_path}", *overrides]).config

    return config


@pytest.fixture
def fresh(tmp_path):
    def folder(name="2026-01-01"):
        path = tmp_path / "train" / name
        path.mkdir(parents=True)
        (path / "config.yaml").write_text("a: 1\n")
        return path

    return folder


def status(path):
    return RunFolder(path).status()


def leave(config, path, error=None, **more):
    """A whole run that ends with `error`."""
    with session(config, path, total_steps=1, **more) as one:
        if error:
            raise error
    return one


def test_done(make, fresh):
    path = fresh()
    one = leave(make(), path)
    assert (status(path).status, status(path).exit_status, status(path).reason) == (RunState.done, 0, None)
    assert (path / "summary.json").is_file() and (path / "report.html").is_file()
    assert json.loads((path / "summary.json").read_text())["peak_memory_gb"] > 0
    assert [event["event"] for event in read_events(path / "events.jsonl")] == ["started", "stopped"]
    assert not one.folder.is_locked()


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
    def fails(folder, ending=None):
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

    with pytest.raises(RunError, match="the real one"), session(make(), path, total_steps=0, reports=reports) as one:
        then_fails(one)
    said = " ".join(capsys.readouterr().out.split())
    assert ("the summary and the report could not be written" in said) is reports
    assert ("how it ended could not be written" in said) is not reports and "status.json" in said


def test_auto_continues_the_newest_unfinished_run_in_its_own_folder(make, fresh):
    config = make("trainer.resume=auto")
    old = fresh("old")
    with pytest.raises(KeyboardInterrupt):
        leave(config, old, KeyboardInterrupt())
    new = fresh("new")
    one = leave(config, new)
    assert one.resumed and one.folder.path == old and not new.exists()
    assert status(old).status is RunState.done and status(old).resumes == 1
    names = [event["event"] for event in read_events(old / "events.jsonl")]
    assert names == ["started", "stopped", "resumed", "stopped"]
    again = fresh("again")
    assert not leave(config, again).resumed and again.exists()  # the old one is done


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


def test_a_resumed_run_removes_what_a_killed_writer_left_aside(make, fresh):
    config, path = make("trainer.resume=auto"), fresh()
    with pytest.raises(RunError):
        leave(config, path, RunError("broke"))
    left = [path / ".status.json.77.0123456789ab.tmp", path / "trajectories" / ".eval.json.1.ba9876543210.tmp"]
    foreign = [path / ".weights.tmp", path / ".other.tmp", path / "0123456789ab.tmp"]
    for file in (*left, *foreign):
        file.touch()
    assert leave(config, fresh("again")).folder.path == path
    assert not any(file.exists() for file in left) and all(file.exists() for file in foreign)


def test_auto_does_not_continue_another_configuration_or_a_live_run(make, fresh):
    config, old = make("trainer.resume=auto"), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("broke"))
    other = make("trainer.resume=auto", "trainer.lr=0.1")
    assert not choose_folder(other, fresh("a"))[1]
    with RunFolder(old).create().acquire():
        assert not choose_folder(config, fresh("b"))[1]
    assert choose_folder(config, fresh("c"))[1]


def test_a_folder_that_is_named_again_is_continued_or_refused(make, fresh):
    """`hydra.run.dir` may be anywhere: what `paths.outputs` holds is not all there is."""
    config, path = make("trainer.resume=auto"), fresh("named")
    with pytest.raises(RunError):
        leave(config, path, RunError("broke"))
    folder, resumed = choose_folder(config, path)
    assert folder.path == path and resumed
    assert choose_folder(make(f"trainer.resume={path}"), path)[1]
    for other in (make(), make("trainer.resume=auto", "trainer.lr=0.1")):
        with pytest.raises(UserError, match=r"named has the files of an earlier run \(failed, step 0\)"):
            choose_folder(other, path)
    leave(config, path)
    with pytest.raises(UserError, match=r"earlier run \(done"):
        choose_folder(config, path)
    with RunFolder(path).acquire():  # the lock's own words say who has it
        assert not choose_folder(make(), path)[1]


def test_none_starts_anew(make, fresh):
    config, old = make("trainer.resume=none"), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("broke"))
    folder, resumed = choose_folder(config, fresh("new"))
    assert folder.path.name == "new" and not resumed


def test_a_path_that_cannot_be_continued(make, fresh, tmp_path):
    path = fresh("new")
    with pytest.raises(UserError, match=r"trainer\.resume=.*nowhere.*no readable status"):
        choose_folder(make(f"trainer.resume={tmp_path / 'nowhere'}"), path)
    old = fresh("old")
    leave(make(), old)
    with pytest.raises(UserError, match="another configuration"):
        choose_folder(make(f"trainer.resume={old}", "trainer.lr=0.1"), path)
    assert path.exists()
    folder, resumed = choose_folder(make(f"trainer.resume={old}"), path)
    assert folder.path == old and resumed


def test_a_given_folder_that_is_in_use_is_refused_and_the_fresh_one_stays(make, fresh):
    config, old = make(), fresh("old")
    leave(config, old)
    with RunFolder(old).create().acquire(), pytest.raises(UserError, match="live run"):
        leave(make(f"trainer.resume={old}"), fresh("new"))
    assert (old.parent / "new").exists()


def test_the_hash_is_in_the_status(make, fresh):
    path = fresh()
    leave(make(), path)
    assert status(path).config_hash == config_hash(make("trainer.resume=auto"))


def test_sigterm_ends_a_run_as_ctrl_c_does(make, fresh):
    path = fresh()
    with pytest.raises(KeyboardInterrupt), session(make(), path, total_steps=1):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
    assert status(path).status is RunState.interrupted
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """This process is in job 7, and `scontrol` writes down what it is asked; the call starts the job again."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    asked = tmp_path / "asked"
    program.write_text(
        f'#!/bin/sh\nif [ $1 = show ]; then echo "JobId=7 JobState=RUNNING Requeue=1 PreemptTime=None"\n'
        f"else echo $* >> {asked}; fi\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def again(restarts):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))

    again.asked = lambda: asked.read_text().splitlines() if asked.exists() else []
    return again


def warn(config, path):
    with pytest.raises(Requeued), session(config, path, total_steps=1) as one:
        one.status.heartbeat(3)
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1.0)


def test_a_warned_job_is_queued_again_and_leaves_without_a_result(make, fresh, slurm):
    path = fresh()
    warn(make(), path)
    assert slurm.asked() == ["requeue 7"]
    found = status(path)
    assert (found.status, found.exit_status, found.step) == (RunState.requeued, 75, 3)
    assert "job 7 is queued again (1 of 4)" in found.reason


def test_what_fails_after_the_warning_is_continued_too(make, fresh, slurm):
    path = fresh()
    with pytest.raises(Requeued), session(make(), path, total_steps=1):
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(1.0)
        except KeyboardInterrupt:
            raise RunError("an engine got the signal too") from None
    assert status(path).status is RunState.requeued and "an engine got" in status(path).reason


@pytest.mark.parametrize("same_folder", [True, False])
def test_a_job_that_is_started_again_goes_on_whatever_resume_says(make, fresh, slurm, same_folder):
    config, old = make("trainer.resume=none"), fresh("old")
    warn(config, old)
    slurm(1)
    new = old if same_folder else fresh("new")
    one = leave(config, new)
    assert one.resumed and one.folder.path == old and (same_folder or not new.exists())
    assert (status(old).status, status(old).resumes, status(old).step) == (RunState.done, 1, 3)
    slurm(2)
    assert leave(config, old).resumed  # queued again by hand though it was done: nothing is lost


def test_a_job_killed_without_a_word_goes_on_as_well(make, fresh, slurm):
    config, old = make(), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("the node fails"))
    slurm(1)
    assert leave(config, fresh("new")).folder.path == old


def test_a_configuration_that_changed_in_the_queue_is_refused(make, fresh, slurm):
    warn(make(), fresh("old"))
    slurm(1)
    with pytest.raises(UserError, match=r"job 7 was queued again, and its configuration is not the one"):
        leave(make("trainer.lr=0.1"), fresh("new"))


def test_the_earlier_start_may_still_hold_the_folder(make, fresh, slurm, monkeypatch):
    monkeypatch.setattr("swe_rl.run.which_folder._LOOK_S", 0.05)
    config, old = make(), fresh("old")
    warn(config, old)
    slurm(1)
    held = RunFolder(old).acquire()
    threading.Timer(0.8, held.release).start()
    assert leave(config, old).resumed


def test_starts_that_get_nowhere_fail(make, fresh, slurm):
    path = fresh()
    for restarts in range(4):  # the first one gets to step 3
        slurm(restarts)
        warn(make(), path)
    slurm(4)
    with pytest.raises(NoProgressError):
        leave(make(), path)
    assert status(path).status is RunState.failed and "was started 3 times" in status(path).reason


def test_an_evaluation_gets_on_by_its_predictions(make, fresh, slurm):
    path = fresh()
    for restarts in range(5):
        slurm(restarts)
        leave(make(), path)
        with (path / "predictions.jsonl").open("a") as file:
            file.write("{}\n")


def test_a_server_is_not_queued_again(make, fresh, slurm):
    path = fresh()
    with pytest.raises(KeyboardInterrupt), session(make(), path, total_steps=0, reports=False):
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1.0)
    assert slurm.asked() == [] and not (path / "requeue.json").exists()


def test_ctrl_c_in_a_job_asks_for_nothing(make, fresh, slurm):
    path = fresh()
    with pytest.raises(KeyboardInterrupt):
        leave(make(), path, KeyboardInterrupt())
    assert slurm.asked() == [] and status(path).status is RunState.interrupted


def test_a_run_is_brought_back_from_its_copy_on_another_nodes_disk(make, fresh, slurm, tmp_path):
    config, old = make(f"paths.sync_to={tmp_path / 'there'}"), fresh("old")
    warn(config, old)
    copy = tmp_path / "there" / "job_7_train"
    assert json.loads((copy / "status.json").read_text())["status"] == "requeued"
    shutil.rmtree(old)
    slurm(1)
    new = fresh("new")
    one = leave(config, new)
    assert one.resumed and one.folder.path == new and status(new).resumes == 1
    assert json.loads((copy / "status.json").read_text())["status"] == "done"


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
