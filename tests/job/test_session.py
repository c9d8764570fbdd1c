"""A run's frame: how it ended is on the disk, and the run's own error is what the caller sees."""

import asyncio
import json
import os
import signal
import time

import pytest

from swe_rl.config.compose import compose, config_hash
from swe_rl.errors import RunError, UserError
from swe_rl.job.session import choose_folder, session
from swe_rl.logger.events import read_events
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.status import RunState


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
def test_every_end_is_written_and_raised_on(make, fresh, error, state, exit_status):
    path = fresh()
    with pytest.raises(type(error)) as caught:
        leave(make(), path, error)
    assert caught.value is error
    assert (status(path).status, status(path).exit_status) == (state, exit_status)
    assert (path / "report.html").is_file() and not RunFolder(path).is_locked()


def test_a_job_without_a_report(make, fresh):
    path = fresh()
    leave(make(), path, reports=False)
    assert status(path).status is RunState.done and not (path / "report.html").exists()


@pytest.mark.parametrize("failure", [OSError("full"), ValueError("a fault in the report")])
def test_a_report_that_fails_never_hides_the_runs_error(make, fresh, monkeypatch, failure):
    def fails(folder):
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


def test_auto_does_not_continue_another_configuration_or_a_live_run(make, fresh):
    config, old = make("trainer.resume=auto"), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("broke"))
    other = make("trainer.resume=auto", "trainer.lr=0.1")
    assert not choose_folder(other, fresh("a"))[1]
    with RunFolder(old).create().acquire():
        assert not choose_folder(config, fresh("b"))[1]
    assert choose_folder(config, fresh("c"))[1]


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
