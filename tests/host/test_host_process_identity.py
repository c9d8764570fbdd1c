"""Whether a process is still the one that wrote a record."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from swe_rl.host import process_identity
from swe_rl.host.process_identity import ProcessIdentity


@pytest.fixture
def ended() -> int:
    """A pid that nobody has."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_this_process_is_there_and_reads_as_it_was_written():
    mine = ProcessIdentity.mine()
    assert (mine.pid, mine.host) == (os.getpid(), socket.gethostname()) and mine.start_ticks > 0 and mine.boot_id
    assert ProcessIdentity.read(mine.record()) == mine
    assert ProcessIdentity.read({name: str(value) for name, value in mine.record().items()}) == mine
    assert not mine.is_gone()


def test_a_process_that_ended_is_gone_also_before_its_parent_asks():
    script = "from swe_rl.host.process_identity import ProcessIdentity as P; print(P.mine().record()); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        identity = ProcessIdentity.read(eval(child.stdout.readline()))
        assert identity.pid == child.pid and not identity.is_gone()
        child.stdin.write("\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert identity.is_gone()
    assert identity.is_gone()


def test_a_pid_of_somebody_else_now_is_gone():
    mine = ProcessIdentity.mine()
    assert replace(mine, start_ticks=mine.start_ticks + 1).is_gone()
    assert replace(mine, boot_id="of another boot").is_gone()


def test_what_cannot_be_known_from_here_is_alive(ended: int):
    gone = replace(ProcessIdentity.mine(), pid=ended)
    assert gone.is_gone()
    assert not replace(gone, host="elsewhere").is_gone()
    assert not replace(gone, pid_namespace="pid:[1]").is_gone()


def test_a_record_of_a_wall_clock_time_counts_by_its_pid_alone(ended: int):
    """As 0.4 wrote them; a clock that was stepped says nothing."""
    record = {"host": socket.gethostname(), "pid": os.getpid(), "started_s": 6.0}
    assert not ProcessIdentity.read(record).is_gone()
    assert ProcessIdentity.read(record | {"pid": ended}).is_gone()


def test_a_process_that_proc_hides_is_alive(monkeypatch: pytest.MonkeyPatch, ended: int):
    monkeypatch.setattr(process_identity, "_read_stat", lambda pid: None)
    assert not ProcessIdentity(socket.gethostname(), os.getppid()).is_gone()
    assert ProcessIdentity(socket.gethostname(), ended).is_gone()


@pytest.mark.parametrize("pid", [0, -1, 1 << 70])
def test_a_pid_that_is_none_kills_nobody(pid: int):
    ProcessIdentity(socket.gethostname(), pid).is_gone()


@pytest.mark.parametrize("record", [{}, {"host": "x"}, {"host": "x", "pid": 1.5}, {"host": "x", "pid": "one"}])
def test_anything_else_is_refused(record: dict[str, object]):
    with pytest.raises((KeyError, ValueError)):
        ProcessIdentity.read(record)
