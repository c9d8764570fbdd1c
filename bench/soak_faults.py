"""What goes wrong in bench/sandbox_soak.py: processes of sandboxes that are killed, engines that fail, commands that
misbehave.

Invariants:
- A process is killed only where its command runs for another `_LEFT_S` at least, so a kill is always one in the middle
  of a command; `killed` has the name of each sandbox that was hit. Of a grader the end cannot be known beforehand.
- Killed are what the driver started (`bwrap`) and the first process of the sandbox: not what a policy can end itself.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.soak_engine import FAULTS

_LEFT_S = 1.0
COMMANDS = {
    "ignores_sigterm": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "prints_100_mb": "yes swe_rl | head -c 100000000",
    "forks": "for i in $(seq 60); do sleep 30 & done; sleep 1",
    "fills_its_disk": "for i in $(seq 40); do head -c 10000000 /dev/zero > /tmp/f$i; done; sleep 8",
    "kills_all_it_sees": "kill -9 -1; sleep 1",
}
KILLS = ("kill_launcher", "kill_first_process", "kill_grader")
KINDS = (*KILLS, *FAULTS, *COMMANDS)


@dataclass(frozen=True, slots=True)
class Running:
    """A command: what the driver started for it, and the first process of its sandbox."""

    sandbox: str
    launcher: int
    first: int
    left_s: float


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
        except OSError:
            continue
    return found


def running_commands(scratch: Path) -> Iterator[Running]:
    """Of this process, in sandboxes below `scratch`."""
    for launcher in children(os.getpid()):
        try:
            words = psutil.Process(launcher).cmdline()
            sandbox = next((name for word in words if (name := _sandbox_of(word, scratch))), "")
            below = children(launcher)
            if sandbox and below:
                yield Running(sandbox, launcher, below[0], _left_s(below[0]))
        except (psutil.Error, OSError):
            continue


def _sandbox_of(word: str, scratch: Path) -> str:
    """The sandbox whose working copy `word` of a command line is; empty for anything else."""
    path = Path(word)
    return path.parent.name if path.name == "work" and path.is_relative_to(scratch) else ""


def _left_s(first: int) -> float:
    """Until a `sleep` that is all of the command ends; 0 for any other command."""
    for pid in children(first):
        process = psutil.Process(pid)
        words = process.cmdline()
        if len(words) == 2 and words[0] == "sleep":
            return process.create_time() + float(words[1]) - time.time()
    return 0.0


@dataclass(slots=True)
class Faults:
    """`ask` sends a fault or a command to one of the engines."""

    scratch: Path
    rng: random.Random
    ask: Callable[[Mapping[str, Any]], Awaitable[None]]
    done: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)

    async def one(self, kind: str) -> bool:
        """False where there was nothing to kill."""
        if kind in FAULTS:
            await self.ask({"fault": kind})
        elif kind in COMMANDS:
            await self.ask({"say": COMMANDS[kind]})
        elif not await asyncio.to_thread(self._kill, kind):  # it reads much of /proc
            return False
        self.done[kind] += 1
        return True

    def _kill(self, kind: str) -> bool:
        running, grader = list(running_commands(self.scratch)), kind == "kill_grader"
        if grader:
            running = [one for one in running if one.sandbox.startswith("grade-")]
        else:
            running = [one for one in running if one.left_s > _LEFT_S]
        if not running:
            return False
        one = self.rng.choice(running)
        pid = one.first if kind == "kill_first_process" else one.launcher
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        if not grader:
            self.killed.add(one.sandbox.rpartition("-")[0])
        return True
