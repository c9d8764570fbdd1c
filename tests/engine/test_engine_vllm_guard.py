"""The guard ends everything below it, however the asking process ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swe_rl.engine.vllm import guard as vllm_guard
from tests.support.waiting import alive, gone

GUARD = [sys.executable, "-I", vllm_guard.__file__]
# A server like vLLM's: children of its own, one in another session, one that ignores SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
deaf = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"]
pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid, subprocess.Popen(deaf).pid]
time.sleep(0.3)
print(os.getpid(), *pids, flush=True)
time.sleep(300)
"""


@pytest.fixture
def family():
    guard = subprocess.Popen(
        [*GUARD, "1.0", sys.executable, "-c", FAMILY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdout is not None
    pids = [int(word) for word in guard.stdout.readline().split()]
    yield guard, pids
    for pid in [*pids, guard.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    guard.stdin.close()
    guard.stdout.close()
    guard.wait()


def test_the_end_of_the_pipe(family):
    guard, pids = family
    guard.stdin.close()
    assert guard.wait(10) == 128 + signal.SIGTERM and gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_guard(family, number):
    guard, pids = family
    guard.send_signal(number)
    guard.wait(10)
    assert gone(pids)


def test_a_killed_command_takes_its_children_along(family):
    guard, pids = family
    started_s = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    assert guard.wait(10) == 128 + signal.SIGKILL and gone(pids)
    assert time.monotonic() - started_s < 2.0


def test_a_killed_guard_takes_the_command_along(family):
    guard, pids = family
    guard.kill()
    assert gone(pids[:1])


def test_a_killed_parent(tmp_path):
    """The asking process is killed with SIGKILL while a child of it still holds the pipe."""
    told = tmp_path / "pids"
    asking = f"""
import os, subprocess, sys, time
guard = subprocess.Popen({[*GUARD, "1.0", sys.executable, "-c", FAMILY]!r}, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, start_new_session=True)
pids = guard.stdout.readline().decode()
heir = os.fork()
if not heir:
    time.sleep(30)
open({str(told)!r}, "w").write(f"{{guard.pid}} {{heir}} {{pids}}")
time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", asking])
    for _ in range(500):
        if told.exists() and len(told.read_text().split()) == 6:
            break
        time.sleep(0.02)
    guard, heir, *pids = map(int, told.read_text().split())
    parent.kill()
    parent.wait()
    assert gone([guard, *pids], 10.0)
    os.kill(heir, signal.SIGKILL)


@pytest.mark.parametrize("status", [0, 3])
def test_the_commands_own_end(status):
    with subprocess.Popen([*GUARD, "1.0", "/bin/sh", "-c", f"exit {status}"], stdin=subprocess.PIPE) as guard:
        assert guard.wait(10) == status


def test_descendants_are_found():
    child = subprocess.Popen(["/bin/sleep", "30"])
    try:
        assert child.pid in vllm_guard.list_descendants(os.getpid())
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_schedulers_warning_ends_nobody(family, number):
    """It goes to every process of a job; the run answers it, and still needs its servers to do so."""
    guard, pids = family
    for pid in (guard.pid, *pids):
        os.kill(pid, number)
    time.sleep(0.3)
    assert guard.poll() is None
    assert all(alive(pid) for pid in pids)
