"""Running the real command as a user does, in a folder of its own."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from swe_rl.trainer.ranks.rank import name_of
from tests.support.command import HEAVY, Started, warm
from tests.support.spare import SPARE

PROMPTS, GROUP = 2, 4  # of a step
_NOTICE_S = 5.0
PER_STEP = PROMPTS * GROUP  # trajectories
SMALL = (
    "trainer.steps=3",
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.n={GROUP}",
    "rollout.eval_n=1",
    "trainer.checkpoint_every_steps=1",
    "trainer.num_threads=1",
)
FEW = ("rollout.prompts_per_step=1", "rollout.n=2")  # too few to learn from: where nothing asks what was learnt


def ranks_of(driver: int) -> list[psutil.Process]:
    """By rank."""
    found = {}
    for one in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # agents' commands come and go
            found[one.name()] = one
    return [found[name] for name in map(name_of, range(len(found))) if name in found]


@dataclass
class Done:
    exit_status: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


class Command:
    """`python -m swe_rl` with small numbers, its outputs below `root`.

    Its processes are forked from one that has torch imported. `cold` ones are started from nothing: in each kind of job
    and of ending there is one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outputs = root / "outputs"

    def start(
        self, *overrides: str, small: bool = True, redirected: str = "", cold: bool = False
    ) -> subprocess.Popen | Started:
        """`redirected`: of a shell, such as `>&-`."""
        words = [*((*SMALL, *root_list(self.root)) if small else ()), *self._paths(), *overrides]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.root / "cache"), "COLUMNS": "120"}
        if not (cold or redirected) and (forked := warm(HEAVY).start(words, self.root, environ)):
            return forked
        shell = ["bash", "-c", f'exec "$@" {redirected}', "bash"] if redirected else []
        return subprocess.Popen(
            [*shell, sys.executable, "-m", "swe_rl", *words],
            cwd=self.root,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_ctrl_c,
        )

    def _paths(self) -> tuple[str, ...]:
        return (f"paths.outputs={self.outputs}", f"paths.scratch={self.root / 'scratch'}")

    def run(self, *overrides: str, small: bool = True, cold: bool = False) -> Done:
        process = self.start(*overrides, small=small, cold=cold)
        try:
            stdout, stderr = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return Done(process.returncode, stdout, stderr)

    def folder(self, name: str = "train") -> Path:
        [folder] = (self.outputs / name).iterdir()
        return folder

    def log(self, name: str = "train") -> str:
        return (self.folder(name) / "run.log").read_text()

    @staticmethod
    def servers(process: subprocess.Popen) -> list:
        """The server processes of a run, not the guards above them."""
        import psutil

        found = []
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # agents' commands come and go
                line = " ".join(one.cmdline())
                if " --port " in line and "vllm/guard.py" not in line:
                    found.append(one)
        return found

    read = staticmethod(lambda path: read(path))

    def children(self) -> list[str]:
        return children_of_runs(self.root)

    def steps(self, name: str = "train") -> list[dict]:
        return read(self.folder(name) / "steps.jsonl")

    def wait_for_step(self, process: subprocess.Popen, step: int, timeout_s: float = 120) -> None:
        """Until `steps.jsonl` has the line of `step`. Its checkpoint is written after it."""
        self._wait(process, lambda run: len(lines_of(run / "steps.jsonl")) >= step, f"step {step}", timeout_s)

    def wait_for_checkpoint(self, process: subprocess.Popen, step: int, timeout_s: float = 120) -> None:
        manifest = Path("checkpoints", f"step_{step:06d}", "manifest.json")
        self._wait(process, lambda run: (run / manifest).is_file(), f"the checkpoint of step {step}", timeout_s)

    def _wait(self, process: subprocess.Popen, done: Callable[[Path], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            if any(done(run) for run in self.outputs.glob("train/*")):
                return
            time.sleep(0.05)
        raise AssertionError(f"{what} was not reached: {process.stderr.read() if process.poll() else ''}")


def lines_of(path: Path) -> list[dict]:
    return read(path) if path.is_file() else []


def _heed_ctrl_c() -> None:
    """As in a terminal: whoever runs this suite in the background has Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def root_list(root: Path, held_out: int = 2) -> tuple[str, ...]:
    """A held-out file of few instances, so that an evaluation takes a second."""
    from swe_rl.dataset.records import read_instances, write_instances
    from swe_rl.env.bugs.env import DATA

    folder = root / "few"
    if not folder.is_dir():
        folder.mkdir()
        write_instances(folder / "heldout.jsonl", read_instances(DATA / "heldout.jsonl")[:held_out])
        write_instances(folder / "train.jsonl", read_instances(DATA / "train.jsonl")[:8])
    return (f"env.dataset={folder}",)


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A whole small run, made once for all processes of pytest, whose folder tests read or copy."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    whole = Command(base / "finished")
    with (base / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "finished.done").exists():
            shutil.rmtree(whole.root, ignore_errors=True)
            whole.root.mkdir()
            done = whole.run("trainer.resume=auto")
            assert done.exit_status == 0, done.text
            (base / "finished.done").touch()
    return whole


def children_of_runs(root: Path) -> list[str]:
    """Command lines of live processes that mention the run's scratch folder.

    A run cannot end the spares that tests gave it, which notice its end: these have a moment.
    """
    found = _lines_with(root)
    until = time.monotonic() + _NOTICE_S
    spares = [line for line in found if SPARE in line]
    while spares and time.monotonic() < until:
        time.sleep(0.02)
        spares = [line for line in _lines_with(root) if SPARE in line]
    return [*spares, *(line for line in found if SPARE not in line)]


def _lines_with(root: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(root) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found
