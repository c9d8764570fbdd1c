"""Settings of the whole suite."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from swe_rl.check import findings
from swe_rl.config import known_hardware
from swe_rl.engine.vllm import server
from swe_rl.host.machine import Machine
from swe_rl.run.event_loop import open_more_files
from swe_rl.sandbox.process import isolation
from swe_rl.trainer.ranks import forked
from tests.support.command import HEAVY, environ_of_session
from tests.support.spare import ask_for_each, at_import

INTERPRETER = forked._start_interpreter
_MEMORY_BYTES = 8 << 30  # with less free memory, files stay on disk

# A busy machine is no failure of a property, so there is no deadline. Each run by hand draws other examples, so few of
# them in each run find in a week what many would find today. `.ci/run` draws the same ones each time: it judges what a
# change did, and an example that the code before it would have failed, too, is no verdict on the change.
# A property has a number of its own only where it is costly.
settings.register_profile("by_hand", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "by_hand")


def hear_signals():
    """Undoes what a starter in the background, nohup or a scheduler leaves behind: signals that are ignored or blocked.

    Every process that a test starts would inherit that, and a shell cannot undo it for its commands.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    # The suite outlives its terminal where it was asked to; what it starts need not.
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    for number in signal.valid_signals() - python_ignores:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handlers.get(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_bytecode():
    """Some machines' environments forbid it. Then each command compiles the package anew, and each run all tests."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def keep_files_in_memory():
    """Has `tmp_path` be in memory where there is much of it.

    Tests make many small files. On a disk a file and its folder were seen to cost 0.1 to 0.9 ms of a core, and a wait;
    in memory 0.02 ms.
    """
    memory = Path("/dev/shm")
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(memory, os.W_OK | os.X_OK):
        return
    runs_programs = not os.statvfs(memory).f_flag & os.ST_NOEXEC
    is_large = os.path.ismount(memory) and shutil.disk_usage(memory).free > _MEMORY_BYTES
    if is_large and runs_programs and _has_attributes(memory):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(memory)


def _has_attributes(folder):
    """Overlays of sandboxes write attributes, which Linux keeps in memory from 6.6 on."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.fileno(), "user.swe_rl", b"")
        except OSError:
            return False
    return True


def leave_out_samples_of_git():
    """Without this each `git init` writes fourteen samples of hooks, and each sandbox with its tree copies them."""
    os.environ["GIT_TEMPLATE_DIR"] = ""


gc.set_threshold(0)  # until all is collected: what is imported stays
hear_signals()
keep_bytecode()
keep_files_in_memory()
leave_out_samples_of_git()
open_more_files()  # as a job does: the soft limit of many shells is 1024


@pytest.fixture(scope="session", autouse=True)
def same_machine_everywhere():
    """hardware=auto means the same machine in every test of this process: two cores, 4 GB, no GPU."""
    machine = Machine(1, 0, "", 0.0, 1.0, False, 2, 4.0, True, 0, "there is no `nvidia-smi` on PATH")
    with pytest.MonkeyPatch.context() as patch:
        for module in (known_hardware, findings):
            patch.setattr(module, "this_machine", lambda: machine)
        yield machine


@pytest.fixture(scope="session", autouse=True)
def one_etc_for_all_sandboxes(tmp_path_factory):
    """Each provider copies hundreds of links of this host, which its commands only read."""
    made, make = {}, isolation.make_etc

    def linked(target, *, network):
        if network not in made:
            made[network] = tmp_path_factory.mktemp("etc") / "etc"
            make(made[network], network=network)
        target.symlink_to(made[network])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "make_etc", linked)
        yield


@pytest.fixture(scope="session", autouse=True)
def isolation_is_tried_once():
    """Each provider runs Python in a sandbox and mounts an overlay to know whether that works on this host. Where the
    same settings passed before, they pass again. Tests in tests/sandbox/ try each time."""
    passed, trial = set(), isolation._try_launcher

    def tried(launcher, folder):
        settings = (str(vars(launcher)).replace(str(folder), ""), folder.stat().st_dev)
        if settings in passed:
            return ""
        reason = trial(launcher, folder)
        if not reason:
            passed.add(settings)
        return reason

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "_try_launcher", tried)
        yield


@pytest.fixture(scope="session", autouse=True)
def servers_are_looked_at_often():
    """A made-up server answers after half a second, a real one after minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_LOOK_S", 0.05)
        yield


@pytest.fixture(scope="session", autouse=True)
def ranks_are_forked_at_once():
    """Else each start of ranks imports torch and transformers; `ranks_from_nothing` leaves this out."""
    environ_of_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked, "_start_interpreter", ask_for_each(HEAVY))
        yield


@pytest.fixture
def ranks_from_nothing(monkeypatch):
    monkeypatch.setattr(forked, "_start_interpreter", INTERPRETER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Takes back what a library left in the environment during a test, and what is read at an import.

    torch's compiler, for one, writes TORCHINDUCTOR_CACHE_DIR at its first use. Every later test of this process would
    find that no warm process has its environment, so that nothing could be forked from one.
    """
    before = at_import(os.environ)
    try:
        return (yield)
    finally:
        for name in at_import(os.environ).keys() - before.keys():
            os.environ.pop(name, None)


class Rotated(pytest.Dir):
    """Each process of pytest begins with another part of the files: what it compiles, the others find compiled. In a
    new clone that takes half of the collection's time, which each of them would spend."""

    def collect(self):
        found = list(super().collect())
        number, of = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "0") for name in ("", "_COUNT"))
        first = len(found) * int(number.removeprefix("gw")) // max(1, int(of))
        return found[first:] + found[:first]


class Rotation:
    @staticmethod
    def pytest_collect_directory(path, parent):
        return Rotated.from_parent(parent, path=path)


def pytest_configure(config):
    config.pluginmanager.register(Rotation)  # this module would be asked about folders below this one alone


_EVERY_TEST = pytest.StashKey[list[pytest.Item]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before `-m` takes any away, and in an order that all processes have. Tests on Ray, which wait for minutes, come
    first: at a lane's end they would leave a worker idle."""
    items.sort(key=lambda item: ("_ray" not in item.path.stem, item.path))
    config.stash[_EVERY_TEST] = list(items)


def pytest_collection_finish():
    """Modules and tests live as long as the process: to look through them at each collection of garbage costs a tenth
    of the suite, and a fork that does would copy their pages. To look even once costs a sixth of a process's start, so
    what the imports left behind stays, too."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # compositions make many objects and little garbage


@pytest.fixture
def every_test(request):
    """All tests that were collected, chosen by `-m` or not."""
    return request.config.stash[_EVERY_TEST]
