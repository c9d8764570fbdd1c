"""`python -m swe_rl --multirun` on the cluster of these tests, small, with its outputs below `root`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.end_to_end.conftest import Done, read, root_list
from tests.slurm.cluster import Cluster, read_json

HOME = Path(__file__).parents[2]
TINY = ("job=rollout", "trainer.steps=1", "rollout.prompts_per_step=1", "rollout.n=2", "sandbox.concurrency=2")
SLURM = ("--multirun", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=cpu", "hardware.cpus_per_node=1")


class Sweep:
    """A folder where somebody stands and types commands."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root, self.cluster = root, cluster
        self.outputs = root / "outputs"
        self.few = root_list(root)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen:
        paths = (f"paths.outputs={self.outputs}", f"paths.scratch={self.root / 'scratch'}")
        own = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.root / "cache"), "PYTHONPATH": str(HOME)}
        return subprocess.Popen(
            [sys.executable, "-m", "swe_rl", *arguments, *self.few, *paths],
            cwd=self.root,
            env={**os.environ, **self.cluster.environ, **own, "COLUMNS": "120", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, timeout_s: float = 200, **environ: str) -> Done:
        process = self.start(*arguments, **environ)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return Done(process.returncode, stdout, stderr)

    @property
    def folder(self) -> Path:
        """Of the only sweep."""
        [folder] = (self.outputs / "multirun").glob("*/*")
        return folder

    @property
    def ids(self) -> list[str]:
        return [job["slurm_id"] for job in read_json(self.folder / "submission.json")["jobs"]]

    def status(self, number: int) -> dict:
        return read_json(self.folder / str(number) / "status.json")

    def steps(self, number: int) -> list[dict]:
        return read(self.folder / str(number) / "steps.jsonl")

    def wait_for_ids(self, process: subprocess.Popen, timeout_s: float = 60) -> list[str]:
        """Until the sweep is submitted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            if list((self.outputs / "multirun").glob("*/*/submission.json")) and all(self.ids):
                return self.ids
            time.sleep(0.05)
        raise AssertionError(f"nothing was submitted: {process.communicate(timeout=5) if process.poll() else ''}")
