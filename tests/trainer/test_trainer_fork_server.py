"""The process that ranks are forked from: what they get of it, and that nobody outlives the driver."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.files.disk import DiskError
from swe_rl.host.addresses import free_port
from swe_rl.trainer.ranks import fork_server
from swe_rl.trainer.ranks.forked import ForkServer, needed_by
from swe_rl.trainer.ranks.rank import DRIVERS_SIGNALS, RankSetup, carry_out
from tests.support.command import ROOT
from tests.support.forked_work import become, begin, count, leave_a_program, tell
from tests.support.waiting import alive, gone, wait_until

pytestmark = pytest.mark.usefixtures("ranks_from_nothing")


MOST_OF_ITS_OWN = 10  # modules that a rank imports after its fork


@contextmanager
def server_of(*modules, log=None):
    server = ForkServer(modules or ("json",), log)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(name, text): a module that the server can import, and this process does not."""
    monkeypatch.syspath_prepend(tmp_path)

    def made(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return made


def told(server):
    """A process that tells what it is: itself, its link, and what it told."""
    process, link = server.start(tell, ())
    assert link.poll(60)
    return process, link, link.recv()


def test_two_of_one_server_are_told_apart_and_end_with_their_own_status():
    with server_of() as server:
        (one, ours, first), (other, theirs, second) = told(server), told(server)
        assert (one.pid, other.pid) == (first["pid"], second["pid"]) and first["parent"] == second["parent"]
        assert one.is_alive() and one.exitcode is None
        ours.send(7)
        one.join()
        assert (one.exitcode, one.is_alive(), other.is_alive()) == (7, False, True)
        one.kill()  # whoever has its number now
        assert other.exitcode is None
        other.kill()
        other.join()
        assert other.exitcode == -signal.SIGKILL
        with pytest.raises((EOFError, OSError)):
            theirs.recv()
    assert not alive(first["parent"])


def test_one_holds_no_descriptor_of_another():
    with server_of() as server:
        _, _, first = told(server)
        _, _, second = told(server)
        ends = [one for one in second["descriptors"] if one.startswith(("socket:", "pipe:"))]
        assert len(ends) == len([one for one in first["descriptors"] if one.startswith(("socket:", "pipe:"))])
        ours = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.exists()}
        of_both = {one for one in first["descriptors"] if one.startswith(("socket:", "pipe:"))} & set(ends)
        assert of_both <= ours  # what this process gives to all its children: where they print


def test_environment_folder_and_path_are_those_of_the_start(module, monkeypatch, tmp_path):
    """Also after they have changed, as when a trainer starts its ranks again."""
    module("job_code", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    for value in ("before", "after"):
        monkeypatch.setenv("OF_THE_DRIVER", value)
        with server_of("job_code") as server:
            _, _, of_rank = told(server)
        assert of_rank["environ"].items() >= os.environ.items()
        assert of_rank["environ"].get("OPENBLAS_NUM_THREADS") == os.environ.get("OPENBLAS_NUM_THREADS")
        assert of_rank["folder"] == str(tmp_path) and of_rank["path"][: len(sys.path)] == sys.path
        assert of_rank["modules"] >= {"job_code"} and of_rank["threads"] == ["MainThread", "driver"]
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)


def test_a_library_that_starts_a_thread_when_it_is_imported_is_kept_from_it(module):
    """transformers imports pyarrow where scikit-learn and pandas are installed, as on most GPU hosts."""
    module("job_code", "import pyarrow")
    with server_of("job_code") as server:
        _, _, of_rank = told(server)
    assert of_rank["modules"] >= {"job_code", "pyarrow"}  # so it was forked
    assert not any(name.startswith("JE_ARROW") for name in of_rank["environ"])


def test_a_users_settings_hold_beside_ours_and_an_import_may_remove_them(module, monkeypatch, tmp_path):
    monkeypatch.setenv("JE_ARROW_MALLOC_CONF", "narenas:1")
    seen = tmp_path / "seen"
    text = f"import os; open({str(seen)!r}, 'w').write(os.environ['JE_ARROW_MALLOC_CONF'])\n"
    module("job_code", f"{text}del os.environ['OPENBLAS_NUM_THREADS']")
    with server_of("job_code") as server:
        _, _, of_rank = told(server)
    assert seen.read_text() == "narenas:1,background_thread:false"
    assert of_rank["environ"]["JE_ARROW_MALLOC_CONF"] == "narenas:1" and of_rank["modules"] >= {"job_code"}


def test_each_rank_has_its_gpu_its_log_its_name_and_no_ear_for_the_drivers_signals(saved, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    setup = RankSetup(saved, TrainerConfig(), AlgoConfig(), 0, 1.0, 0, 2, 1, "", "cpu", ("3", "5"), tmp_path)
    with server_of("swe_rl.trainer.ranks.rank") as server:
        for rank, gpu in enumerate(setup.gpus):
            _, link = server.start(become, (replace(setup, rank=rank),))
            assert link.poll(60)
            of_rank = link.recv()
            assert of_rank["environ"]["CUDA_VISIBLE_DEVICES"] == gpu and of_rank["name"] == f"trainer-rank{rank}"
            assert of_rank["ignored"] >= DRIVERS_SIGNALS and not of_rank["blocked"] & DRIVERS_SIGNALS
            assert (tmp_path / f"rank{rank}.log").read_text() == "of a library\n"


@pytest.mark.slow
def test_what_ranks_need_starts_no_thread_and_no_gpu_before_the_fork(monkeypatch, saved):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with server_of(*needed_by(saved.path)) as server:
        _, _, of_rank = told(server)
        assert of_rank["modules"] >= {"torch", "transformers.models.qwen3.modeling_qwen3"}  # so it was forked
        assert len(psutil.Process(of_rank["parent"]).threads()) == 1
        assert of_rank["tasks"] == 2 and of_rank["threads"] == ["MainThread", "driver"] and not of_rank["cuda"]
        _, link = server.start(count, ())
        assert link.poll(60) and link.recv() == (max(1, len(os.sched_getaffinity(0))), float(1 << 20))
        setup = RankSetup(saved, TrainerConfig(), AlgoConfig(), 0, 1.0, 0, 1, 1, f"127.0.0.1:{free_port()}", "cpu")
        _, link = server.start(begin, (setup,))
        assert link.poll(60)
        said, imported = link.recv()
        assert ("ready", None) in said, said
        own = [name for name in imported if name.partition(".")[0] in {"torch", "transformers", "swe_rl"}]
        assert len(own) < MOST_OF_ITS_OWN, own  # each rank would import them again


def test_a_rank_whose_imports_fail_reports_it_with_the_garbage_collector_on(monkeypatch, saved):
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    setup = RankSetup(saved, TrainerConfig(), AlgoConfig(), 0, 1.0, 0, 1, 1, "", "cpu")
    ours, theirs = Pipe()
    with ours, theirs:
        assert carry_out(setup, theirs) == 1 and ours.recv() == ("alive",)
        assert ours.recv()[:2] == ("failed", "ModuleNotFoundError")
    assert gc.isenabled()


HINDRANCES = {
    "it_fails": ("raise ImportError('libcudart.so.12 is not there')", "ImportError: libcudart.so.12 is not there"),
    "it_starts_a_thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "their imports started 1 threads",
    ),
    "torch": ("from types import SimpleNamespace; cuda = SimpleNamespace(_is_in_bad_fork=lambda: True)", "for GPUs"),
}


@pytest.mark.parametrize("name", HINDRANCES)
def test_where_a_fork_would_not_do_the_rank_is_a_new_interpreter(module, tmp_path, monkeypatch, name):
    text, reason = HINDRANCES[name]
    monkeypatch.setenv("OF_THE_DRIVER", "now")
    with server_of(module(name, text), log=tmp_path / "log") as server:
        process, link, of_rank = told(server)
        assert name not in of_rank["modules"] and of_rank["threads"] == ["MainThread", "driver"]
        assert of_rank["environ"]["OF_THE_DRIVER"] == "now" and of_rank["path"][: len(sys.path)] == sys.path
        assert process.pid == of_rank["pid"] and of_rank["parent"] == psutil.Process(process.pid).ppid()
        link.send(5)
        process.join()
        assert process.exitcode == 5
    said = (tmp_path / "log").read_text()
    assert re.fullmatch(f"(each|this) rank imports for itself: .*{re.escape(reason)}\n", said), said


def test_a_killed_rank_has_ended_though_a_program_that_it_started_goes_on():
    with server_of() as server:
        process, link = server.start(leave_a_program, ())
        assert link.poll(60)
        program = link.recv()
        try:
            process.kill()
            process.join(10)
            assert process.exitcode == -signal.SIGKILL and alive(program)
        finally:
            os.kill(program, signal.SIGKILL)


def test_a_process_that_an_import_left_behind_ends_no_rank(module):
    with server_of(module("it_leaves_one", "import os, time\nif not os.fork(): time.sleep(1); os._exit(0)")) as server:
        process, _, of_rank = told(server)
        wait_until(lambda: len(psutil.Process(of_rank["parent"]).children()) == 1)
        assert process.is_alive() and told(server)[0].is_alive()


def test_a_log_that_cannot_be_opened_names_itself(tmp_path):
    (tmp_path / "trainer").touch()
    with pytest.raises(DiskError, match=re.escape(str(tmp_path / "trainer"))):
        ForkServer(("json",), tmp_path / "trainer" / "rank0.log")


def test_a_server_that_ends_before_its_ranks_are_there_is_why_there_are_none(module, tmp_path):
    with server_of(module("it_ends", "import os; os._exit(3)"), log=tmp_path / "log") as server:
        process, link = server.start(tell, ())
        process.join(30)
        assert (process.is_alive(), process.exitcode, process.pid) == (False, 3, 0)
        with pytest.raises((EOFError, OSError)):
            link.recv()
        late, _ = server.start(tell, ())
        late.join(30)
        assert late.exitcode == 3


def test_a_rank_that_is_not_yet_there_can_be_killed(module):
    with server_of(module("it_waits", "import time; time.sleep(60)")) as server:
        process, link = server.start(tell, ())
        began_s = time.monotonic()
        assert process.is_alive() and process.pid == 0
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL and time.monotonic() - began_s < 10


def test_a_server_that_is_killed_takes_its_ranks_along():
    with server_of() as server:
        process, link, of_rank = told(server)
        os.kill(of_rank["parent"], signal.SIGKILL)
        process.join(10)
        assert process.exitcode == -signal.SIGKILL and gone([of_rank["pid"]], 5)


def test_no_room_for_a_process_is_what_the_link_says(monkeypatch):
    ours, theirs = Pipe()
    reading, writing = os.pipe()

    def full():
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(fork_server.os, "fork", full)
    assert fork_server._fork_rank((os.dup(theirs.fileno()), writing)) == -1
    kind, error, text, _, is_ours = ours.recv()
    assert (kind, error, is_ours) == ("failed", "BlockingIOError", False) and "unavailable" in text
    assert os.read(reading, 64) == b"0\n1\n"


DRIVER = """
import os, signal, sys, time
from swe_rl.trainer.ranks.forked import ForkServer
from tests.support.forked_work import tell

signal.signal(signal.SIGINT, signal.default_int_handler)
server = ForkServer([sys.argv[1]], None)
started = [server.start(tell, ()) for _ in range(2)]
pids = [server._process.pid]
if sys.argv[1] == "json":
    pids += [link.recv()["pid"] for _, link in started]
print(*pids, flush=True)
if sys.argv[2] == "error":
    raise RuntimeError("of the driver")
if sys.argv[2] == "wait":
    time.sleep(60)
"""


@contextmanager
def driver_of(imported, then):
    """A driver in a process group of its own, and the numbers of its server and its ranks."""
    line = [sys.executable, "-c", DRIVER, imported, then]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, process_group=0) as one:
        try:
            yield one, [int(word) for word in one.stdout.readline().split()]
        finally:
            one.kill()


@pytest.mark.parametrize("way", ["returns", "error", "SIGKILL", "SIGTERM", "SIGINT to all"])
def test_nobody_outlives_the_driver(way):
    with driver_of("json", "wait" if way.startswith("SIG") else way) as (driver, pids):
        assert len(pids) == 3
        if way == "SIGINT to all":
            os.killpg(driver.pid, signal.SIGINT)
        elif way != "returns" and way != "error":
            os.kill(driver.pid, getattr(signal, way))
        assert driver.wait(30) == {"returns": 0, "error": 1, "SIGINT to all": -signal.SIGINT}.get(
            way, -getattr(signal, way, 0)
        )
        assert gone(pids, 5)


def test_a_server_does_not_outlive_its_driver_in_the_middle_of_its_imports(module):
    with driver_of(module("it_waits", "import time; time.sleep(60)"), "wait") as (driver, [server]):
        wait_until(lambda: psutil.Process(server).status() == psutil.STATUS_SLEEPING)
        driver.kill()
        assert gone([server], 5)


@pytest.mark.parametrize("imported", ["json", "it_waits"])
def test_the_drivers_signals_end_no_server_and_no_rank(module, imported):
    module("it_waits", "import time; time.sleep(1)")
    with server_of(imported) as server:
        process, _ = server.start(tell, ())
        for number in DRIVERS_SIGNALS:
            os.kill(server._process.pid, number)
        _, _, of_rank = told(server)
        assert of_rank["blocked"] >= DRIVERS_SIGNALS  # until it says what it does with them
        assert process.is_alive() and alive(of_rank["parent"])
