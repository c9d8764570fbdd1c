"""One run of a job under kills: started, killed, resumed until it is done, and looked at.

Invariants:
- A kill counts when its target was alive: what came too late is told apart, and is for another run.
- What is resumed is started at once, while what the killed run left may still be alive.
"""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.files.kill_point import VARIABLE
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.logger.folder import RunFolder, RunState
from tests.support.storm.allocation import Allocation, step_processes
from tests.support.storm.check import Facts, Violation, leftover_files, read_facts, violations
from tests.support.storm.jobs import Job, environment, server_words, words
from tests.support.storm.starts import Starts
from tests.support.storm.targets import (
    POLL_S,
    candidates,
    is_under_way,
    part,
    samplings,
    stamp,
    updates,
    waits_for_update,
)

_SEARCH_S = 20.0  # for a target that comes and goes
_LOOK_S = 0.02  # into logs of servers
_SERVES_S = 300.0  # until a sandbox server is announced
_GONE_S = 15.0  # for what a run started, after its end
_UPDATE_S = 0.8  # of new weights, from memory to memory: a kill comes within it
_MOST_STARTS = 12
_LONGEST_DELAY_S = {"guard": 0.04, "grader": 0.25, "store": 0.002}
_TAIL_CHARS = 600


@dataclass(frozen=True, slots=True)
class Kill:
    """`at`: of the time for which an uninterrupted run samples, from when it begins to; where `in_start`, of the time
    until then, from the start or the kill before. `point`: of kill_point, with its count, in place of all three."""

    number: int
    target: str
    at: float = 0.0
    in_start: bool = False
    point: str | None = None


@dataclass(slots=True)
class Outcome:
    """`killed`: those that hit, and whether the run's own process outlived them."""

    killed: list[tuple[Kill, bool]] = field(default_factory=list)
    starts: int = 0
    took_s: float = 0.0
    start_s: float = 0.0  # of it until the run began to sample; 0 where it was killed
    violations: list[Violation] = field(default_factory=list)
    facts: Facts | None = None


class Run:
    """`times_s`: for which an uninterrupted run starts, and samples. Raises RuntimeError where its job needs SLURM, and
    none starts."""

    def __init__(
        self, job: Job, root: Path, data: Path, starts: Starts, times_s: tuple[float, float], allocation: Allocation
    ) -> None:
        self._job, self._root, self._data, self._starts, self._times_s = job, root, data, starts, times_s
        held = allocation.environment() if job.on_nodes else {}
        self._environment = {**environment(job, root), **held}
        self._log = root / "run.txt"
        self._pid = self._server = self._samplings = 0
        self._until_s = 0.0
        self._outcome = Outcome()

    def go(self, kills: Sequence[Kill], reference: Facts | None) -> Outcome:
        """Without `reference` the run is one: nothing is compared."""
        began_s = time.monotonic()
        try:
            self._serve()
            self._start(kills[0].point if kills else None)
            if reference is None and self._samples():
                self._outcome.start_s = time.monotonic() - began_s
            for kill, following in zip(kills, [*kills[1:], None], strict=False):
                if not self._strike(kill, following.point if following else None):
                    break
            self._finish()
        except TimeoutError as error:
            self._violation("unfinished", str(error))
            self._starts.kill_all()
        self._stop_serving()
        self._outcome.took_s = time.monotonic() - began_s
        self._look(reference)
        return self._outcome

    def _serve(self) -> None:
        if self._job.serves_sandboxes and not self._server_lives():
            folders = server_words(self._root, self._data)
            before = set(self._announced())
            self._server = self._starts.start(folders, self._environment, self._root, self._root / "server.txt")
            self._wait(lambda: bool(set(self._announced()) - before), _SERVES_S, "the sandbox server does not serve")

    def _announced(self) -> list[tuple[Path, int]]:
        """Signs of life of servers in the meeting folder."""
        return [(path, path.stat().st_mtime_ns) for path in (self._root / "meeting").glob("runtime*.json")]

    def _server_lives(self) -> bool:
        return bool(self._server) and self._starts.status(self._server) is None

    def _stop_serving(self) -> None:
        if self._server_lives():
            os.kill(self._server, signal.SIGTERM)
            self._wait(lambda: not self._server_lives(), 30.0, "the sandbox server does not end")

    def _start(self, point: str | None = None) -> None:
        self._outcome.starts += 1
        self._samplings = samplings(self._root / "outputs")
        environment = {**self._environment, **({VARIABLE: point} if point else {})}
        self._pid = self._starts.start(words(self._job, self._root, self._data), environment, self._root, self._log)
        self._until_s = time.monotonic() + self._job.patience_s

    def _status(self) -> int | None:
        """Raises TimeoutError for a start that hangs."""
        status = self._starts.status(self._pid)
        if status is None and time.monotonic() > self._until_s:
            raise TimeoutError(f"a start took more than {self._job.patience_s:g} s: {self._tail()}")
        return status

    def _strike(self, kill: Kill, next_point: str | None) -> bool:
        """Whether it hit. The run's own process is started again where it is gone, up to the next point."""
        if kill.point:
            while self._status() is None:
                time.sleep(POLL_S)
            hit = self._starts.status(self._pid) != 0
        else:
            hit = self._kill_at_random(kill)
        if not hit:
            return False
        survived = self._outlives()
        if not survived and self._is_done():  # it was on its way out: there is nothing to resume
            return False
        self._outcome.killed.append((kill, survived))
        self._serve()
        if not survived:
            self._start(next_point)
        return True

    def _kill_at_random(self, kill: Kill) -> bool:
        if not kill.in_start and not self._samples():
            return False
        until_s = time.monotonic() + kill.at * self._times_s[not kill.in_start]
        while time.monotonic() < until_s:
            if self._status() is not None:
                return False
            time.sleep(POLL_S)
        chance = random.Random(f"{kill.number}")
        target = part(kill.target)
        if waits_for_update(kill.target) and not self._meets_update(chance):
            return False
        pid = self._victim(target, chance)
        if pid is None:
            return False
        time.sleep(chance.uniform(0.0, _LONGEST_DELAY_S.get(target, 0.0)))
        lasts = target in ("driver", "store", "runtime", "step") or pid in candidates(target, [pid])
        if not lasts or self._status() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def _samples(self) -> bool:
        """Once this start has begun to sample; False where it ends before."""
        while samplings(self._root / "outputs") <= self._samplings:
            if self._status() is not None:
                return False
            time.sleep(_LOOK_S)
        return True

    def _meets_update(self, chance: random.Random) -> bool:
        """Whether the next update of weights is under way: some way into it. An update that was over is let go by."""
        outputs, before = self._root / "outputs", updates(self._root / "outputs")
        while self._status() is None:
            if is_under_way(before, updates(outputs)):
                time.sleep(chance.uniform(0.0, _UPDATE_S))
                now = updates(outputs)
                if is_under_way(before, now):
                    return True
                before = now
            time.sleep(_LOOK_S)
        return False

    def _victim(self, target: str, chance: random.Random) -> int | None:
        if target == "driver":
            return self._pid
        before, until_s = stamp(self._root / "outputs"), time.monotonic() + _SEARCH_S
        while self._status() is None and time.monotonic() < until_s:
            if target == "store":
                found = [self._pid] if stamp(self._root / "outputs") != before else []
            elif target == "runtime":
                found = [self._server] if self._server_lives() else []
            elif target == "step":
                found = step_processes(self._root)
            else:
                found = candidates(target, self._starts.alive())
            if found:
                return chance.choice(sorted(found))
            time.sleep(POLL_S)
        return None

    def _outlives(self) -> bool:
        """The run's own process, or it ends because of the kill: then it is seen in `_finish`, and resumed."""
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s:
            if self._starts.status(self._pid) is not None:
                return self._starts.status(self._pid) == 0
            time.sleep(POLL_S)
        return True

    def _finish(self) -> None:
        """Started again until it is done. Raises TimeoutError."""
        while True:
            while (status := self._status()) is None:
                if self._job.serves_sandboxes:
                    self._serve()
                time.sleep(POLL_S)
            if status == 0 or self._is_done():
                return
            if not self._outcome.killed or self._outcome.starts >= _MOST_STARTS:
                raise TimeoutError(f"start {self._outcome.starts} ended with status {status}: {self._tail()}")
            killed, _ = self._outcome.killed[-1]
            self._outcome.killed[-1] = killed, False
            self._start()

    def _is_done(self) -> bool:
        folders = (RunFolder(path.parent) for path in self._root.glob("outputs/train/*/status.json"))
        return any(json.loads(folder.status_json.read_text())["status"] == RunState.done for folder in folders)

    def _look(self, reference: Facts | None) -> None:
        own = {self._starts.pid}
        with suppress(TimeoutError):
            self._wait(lambda: not self._left() - own, _GONE_S, "")
        for pid in self._left() - own:
            self._violation("leftover", f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_text()[:200]}")
        self._starts.kill_all()
        folders = [RunFolder(path.parent) for path in (self._root / "outputs").glob("train/*/status.json")]
        if len(folders) != 1:
            self._violation("doubled" if folders else "lost", f"{len(folders)} run folders have a status.json")
        for folder in folders[:1]:
            try:
                self._outcome.facts = read_facts(folder)
            except (TraceStoreError, KeyError, ValueError) as error:
                self._violation("lost", f"the run's files cannot be read: {error}")
                continue
            if reference is not None:
                job, facts = self._job, self._outcome.facts
                found = violations(facts, reference, repeats=job.repeats, streams=job.streams)
                self._outcome.violations += found
        self._outcome.violations += leftover_files(self._root)

    def _left(self) -> set[int]:
        return {*self._starts.alive(), *(step_processes(self._root) if self._job.on_nodes else ())}

    def _wait(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        until_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > until_s:
                raise TimeoutError(what)
            time.sleep(POLL_S)

    def _violation(self, kind: str, text: str) -> None:
        self._outcome.violations.append(Violation(kind, text))

    def _tail(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.is_file() else ""
        return re.sub(r"\s+", " ", text)[-_TAIL_CHARS:]
