"""One arm of the oracle: `job=eval` through the real application, and what it left.

Invariants:
- The application is run as a user runs it, in a process of its own; only its files and its exit status are read.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ArmError(Exception):
    """The application ended with another status than 0; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Arm:
    agent: str
    folder: Path  # of the run
    wall_s: float
    trajectories: Sequence[dict[str, Any]]

    def resolved(self, ids: set[str]) -> int:
        return sum(one["status"] == "resolved" for one in self.trajectories if one["instance_id"] in ids)

    def seconds(self, part: str) -> list[float]:
        """Of each trajectory, ascending; `part`: boot, agent or grade."""
        return sorted(one["times_s"][part] for one in self.trajectories if part in one["times_s"])


@dataclass(frozen=True, slots=True)
class Application:
    """`python -m swe_rl` with its outputs, cache and scratch below `out`."""

    out: Path
    dataset: Path
    sandbox: str
    host: str  # the engine's address
    at_once: int = 2

    def evaluate(self, agent: str) -> Arm:
        """Raises ArmError."""
        outputs = self.out / "runs" / agent
        started_s = time.monotonic()
        self._run("job=eval", f"agent={agent}", f"paths.outputs={outputs}", *self._few())
        wall_s = time.monotonic() - started_s
        folder = max(outputs.glob("eval/*"), key=lambda path: path.stat().st_mtime)
        lines = (folder / "trajectories" / "eval_000000.jsonl").read_text(encoding="utf-8").splitlines()
        return Arm(agent, folder, wall_s, [json.loads(line) for line in lines])

    def prepare(self) -> float:
        """Images that are not there yet are built from the rows' sources; seconds. Raises ArmError."""
        started_s = time.monotonic()
        self._run("job=prepare")
        return time.monotonic() - started_s

    def _few(self) -> tuple[str, ...]:
        return (
            "rollout.grade_timeout_s=900",  # the default is for the embedded instances
            "rollout.eval_n=1",
            f"rollout.concurrency={self.at_once}",
            f"sandbox.concurrency={self.at_once}",
            "sandbox.cpus=1.0",
            "sandbox.memory_gb=1.0",
        )

    def _run(self, *overrides: str) -> None:
        command = [
            *(sys.executable, "-m", "swe_rl", "env=jsonl", f"env.dataset={self.dataset}", f"sandbox={self.sandbox}"),
            f"sandbox.host={self.host}",
            *(f"paths.cache={self.out / 'cache'}", f"paths.scratch={self.out / 'scratch'}", *overrides),
        ]
        log = self.out / "log.txt"
        with log.open("a", encoding="utf-8") as file:
            file.write(f"\n$ {' '.join(command)}\n")
            file.flush()
            done = subprocess.run(command, stdout=file, stderr=file, env=os.environ | {"COLUMNS": "120"}, check=False)
        if done.returncode:
            last = log.read_text(encoding="utf-8").splitlines()[-12:]
            raise ArmError(f"{' '.join(overrides[:2])} ended with status {done.returncode}; {log}:\n" + "\n".join(last))
