"""Signals that end a run: which are heard, what a second one does, and whose handlers are left alone."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from swe_rl.hardware import sync
from swe_rl.hardware.slurm.requeue import Requeued, Survival, keep_warnings, read_record, take_warning
from swe_rl.logger.folder import RunFolder
from swe_rl.run.end_signal import listen_for_end
from swe_rl.run.session import open_session
from tests.support.ended_runs import leave


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_each_ends_a_run_of_a_job_once(number):
    with listen_for_end(in_slurm=True) as told:
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert told.by == number.name
        send(signal.SIGTERM)  # the state is being saved
        send(signal.SIGCONT)
        assert told.by == number.name


@pytest.fixture
def before_the_run(slurm):
    """In a job whose warnings are kept from now on; the call sends one."""
    keep_warnings()
    yield lambda: send(signal.SIGUSR2)
    take_warning()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def test_a_warning_before_the_run_hears_is_answered_once_it_can(make, fresh, slurm, before_the_run, monkeypatch):
    begin = Survival.begin
    before_the_run()
    with monkeypatch.context() as patch:
        patch.setattr(Survival, "begin", lambda *given: (send(signal.SIGTERM), begin(*given)))
        with pytest.raises(Requeued), open_session(make(), path := fresh(), total_steps=1):
            pytest.fail("it was told")
    assert slurm.asked() == ["requeue 7"] and "told by SIGUSR2" in RunFolder(path).status().reason
    assert take_warning() is None
    with open_session(make(), fresh("other"), total_steps=1):
        pass  # nobody told this one


def test_a_warning_while_a_copy_is_brought_back(make, fresh, slurm, before_the_run, monkeypatch, tmp_path):
    config, old = make(f"paths.sync_to={tmp_path / 'there'}"), fresh("old")
    leave(config, old)
    shutil.rmtree(old)
    slurm(1)
    copy_file = sync._copy_file
    monkeypatch.setattr(sync, "_copy_file", lambda *paths: (before_the_run(), copy_file(*paths)))
    with pytest.raises(Requeued):
        leave(config, fresh("new"))
    record = read_record(tmp_path / "there" / "job_7_train" / "requeue.json")
    assert slurm.asked() == ["requeue 7"] and (record.requeues, record.starts[-1].restarts) == (1, 1)
    monkeypatch.setattr(sync, "_copy_file", copy_file)
    slurm(2)
    assert leave(config, fresh("newer")).resumed


def test_nothing_is_kept_outside_a_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    keep_warnings()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_the_end_of_a_run_is_not_disturbed():
    with listen_for_end(in_slurm=True) as told:
        told.deaf = True
        send(signal.SIGTERM)
        assert told.by is None


def test_ctrl_c_still_hurries():
    with listen_for_end(in_slurm=True) as told:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert told.by == "SIGTERM"


def test_warnings_are_left_alone_outside_a_job():
    before = signal.getsignal(signal.SIGUSR2)
    with listen_for_end(in_slurm=False):
        assert signal.getsignal(signal.SIGUSR2) == before


@pytest.mark.parametrize("in_slurm", [True, False])
def test_a_launchers_handlers(in_slurm):
    """In a job they would swallow SIGTERM; outside one they know better. Put back in either case."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    launchers = signal.getsignal(signal.SIGTERM)
    try:
        with listen_for_end(in_slurm=in_slurm) as told:
            if in_slurm:
                with pytest.raises(KeyboardInterrupt):
                    send(signal.SIGTERM)
            else:
                send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is launchers
        assert (told.by, heard) == (("SIGTERM", []) if in_slurm else (None, [1]))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_also_where_ctrl_c_is_ignored():
    code = (
        "import os, signal, time\nfrom swe_rl.run.end_signal import listen_for_end\n"
        "with listen_for_end(in_slurm=True):\n os.kill(os.getpid(), signal.SIGUSR1)\n time.sleep(5)\n"
    )
    done = subprocess.run(
        ["bash", "-c", f'trap "" INT; exec {shlex.quote(sys.executable)} -c "$CODE"'],
        env={**os.environ, "CODE": code},
        capture_output=True,
        text=True,
    )
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize("ignored", [True, False])
def test_what_must_not_be_cut_short_ends_before_the_run_does(ignored):
    """A step that was cut off in mid-update would leave weights of no step, and a checkpoint of them."""
    code = (
        "import asyncio, os, signal, time\nfrom swe_rl.run import event_loop\n"
        "from swe_rl.run.end_signal import listen_for_end\n"
        "async def step():\n"
        " os.kill(os.getpid(), signal.SIGTERM)\n"
        " await asyncio.to_thread(time.sleep, 0.3)\n"
        " await asyncio.sleep(0)\n print('the step is whole')\n"
        "async def work():\n await event_loop.run_uninterrupted(step())\n print('not reached')\n"
        "with listen_for_end(in_slurm=False) as heard:\n"
        " try:\n  event_loop.run_job(work())\n"
        " except KeyboardInterrupt:\n  print('interrupted by', heard.by)\n"
    )
    python = f'exec {shlex.quote(sys.executable)} -c "$CODE"'
    done = subprocess.run(
        ["bash", "-c", f'trap "" INT; {python}' if ignored else python],
        env={**os.environ, "CODE": code},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["the step is whole", "interrupted by SIGTERM"], done.stderr
