"""A command that is forked from a process with its imports done is the command that is started from nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.command import HEAVY, LIGHT, warm
from tests.support.spare import SPARE
from tests.support.waiting import gone, wait_until

ROOT = Path(__file__).parent.parent
FACTS = """
import json, os, re, signal, sys
status = open("/proc/self/status").read()
print(json.dumps({
    "folder": os.getcwd(), "arguments": sys.argv, "path": sys.path, "name": __name__,
    "session": os.getsid(0) == os.getpid(),
    "environ": dict(os.environ), "line": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)),
    "signals": re.findall("Sig(?:Blk|Ign|Cgt).*", status), "interrupt": str(signal.getsignal(signal.SIGINT)),
    "files": sorted(os.listdir("/proc/self/fd"))[:-1], "input": os.readlink("/proc/self/fd/0"),
    "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
}, indent=1, sort_keys=True))
print("said", file=sys.stderr)
"""


@pytest.fixture
def environ():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OF_THIS_TEST": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(tmp_path, environ):
    """start(code, *arguments): forked."""

    def forked(code, *arguments):
        process = warm(LIGHT).start(list(arguments), tmp_path, environ, code)
        assert process is not None
        return process

    return forked


def test_it_is_the_same_process(start, tmp_path, environ):
    done = start(FACTS, "a=1", "b c").completed(60)
    cold = subprocess.run(
        [sys.executable, "-c", FACTS, "a=1", "b c"],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert done.stdout == cold.stdout
    assert (done.returncode, done.stderr) == (cold.returncode, cold.stderr) == (0, "said\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("raise KeyError", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_how_it_ended_is_known(start, code, status):
    assert start(code).completed(60).returncode == status


def test_it_is_waited_for_interrupted_and_killed(start):
    process = start("import time; print('up', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "up\n" and process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    process = start("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.05)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "HF_HOME", "PYTHONPATH"])
def test_what_is_read_at_an_import_is_not_forked(tmp_path, environ, name):
    assert warm(LIGHT).start([], tmp_path, {**environ, name: "/elsewhere"}, "pass") is None


def test_it_is_ready_to_compose(start):
    done = start(
        "from swe_rl.config.store import register_schema; print(register_schema.cache_info().currsize)"
    ).completed(60)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.slow
def test_its_spares_are_seen_and_each_ends_with_it(tmp_path, environ):
    words = ["job=runtime", f"runtime.shared_dir={tmp_path / 'meet'}"]
    process = warm(HEAVY).start(words, tmp_path, environ)

    def spares():
        found = sorted(psutil.Process(process.pid).children(), key=lambda one: one.pid)
        return [one for one in found if {SPARE, *words} <= set(one.cmdline())]

    wait_until(lambda: len(spares()) == 2, timeout_s=60.0)
    first, second = spares()
    second.suspend()
    process.kill()
    assert gone([first]), "the second one holds its socket"
    second.resume()
    assert gone([second])


def test_processes_of_one_pytest_share_it_and_it_ends_with_the_last(tmp_path, environ):
    """Each caller is a process of its own, as those of xdist are."""
    ask = (
        "import os, sys; from pathlib import Path; from tests.support.command import LIGHT, warm\n"
        "done = warm(LIGHT).start([], Path.cwd(), dict(os.environ), 'import os; print(os.getppid())').completed(60)\n"
        "print(done.stdout.strip(), flush=True); sys.stdin.read()"
    )
    environ["PYTEST_XDIST_TESTRUNUID"] = f"a test of {os.getpid()}"
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", ask],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    servers = {int(caller.stdout.readline()) for caller in callers}
    assert len(servers) == 1
    server = psutil.Process(servers.pop())
    callers[0].communicate()
    assert server.is_running() and server.status() != psutil.STATUS_ZOMBIE
    callers[1].communicate()
    assert gone([server])
