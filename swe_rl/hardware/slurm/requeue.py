"""This module decides whether a job that has to end before its run is done is queued again, and keeps a record of that
on the disk.

Invariants:
- `requeue.json` in the run's folder names the job and lists its starts; it is how a start knows the run that it goes on
  with, whatever folder the command line would make.
- A run that runs out of time asks for at most `max_requeues`; being preempted and nodes that fail cost nothing. Three
  starts in a row that finished no step end it either way; one of a run that is done begins the row anew.
- A job that its user cancelled is never queued again.
- A warning may come while Python imports, or while a copy is brought back. It is kept until the run can answer it;
  without a handler it would end the process. SIGTERM still ends it then: nothing has begun yet, and SLURM itself queues
  a job again that it preempts.
- SLURM ends the job as soon as it is asked. A warning leaves time: the run's copy is brought up to date before.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from swe_rl.errors import RunError
from swe_rl.files.disk import write_json_atomic
from swe_rl.files.json_text import decode_json
from swe_rl.hardware.slurm.jobs import Allocation, JobView, Run, SlurmError, run_scontrol, view_job
from swe_rl.host.program import run_program

# A process ends so if its run goes on in another one: EX_TEMPFAIL of sysexits.h.
EXIT_STATUS = 75
# A scheduler sends these ahead of the end.
WARNINGS = frozenset({"SIGUSR1", "SIGUSR2"})
# Two failed starts may be bad luck with a node. After three the fault is the run's.
FRUITLESS_STARTS = 3


class Requeued(SystemExit):
    """Leaves the process without a result: the run is not over. No launcher takes it for the job's end."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


class NoProgressError(RunError):
    """The job was started again and again, and finished no step."""


@dataclass(frozen=True, slots=True)
class Start:
    """Describes a start of a run. `step` is the last finished one when it began. `told` says why it had to end, once it
    had to. If `done`, the run was over, and the job was queued again for another one."""

    restarts: int
    node: str
    # Has unix seconds.
    time: float
    step: int
    told: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class RequeueRecord:
    """Names a job with its starts. `requeues` counts what was used of the budget."""

    job: str
    requeues: int = 0
    starts: tuple[Start, ...] = ()


def read_record(path: Path) -> RequeueRecord | None:
    """Reads the record, or returns None if there is none, or none that can be read."""
    try:
        values = decode_json(path.read_bytes())
        return RequeueRecord(
            values["job"], int(values["requeues"]), tuple(Start(**start) for start in values["starts"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def continues_run(record: RequeueRecord | None, here: Allocation) -> bool:
    """Tells whether the recorded run is this job's from before it was queued again."""
    # A record without a start ended before its first one was noted.
    if record is None or record.job != here.key or not record.starts:
        return False
    return record.starts[-1].restarts < here.restarts


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says what becomes of a run. If `requeued`, SLURM has the job in its queue again, asked by us or by itself."""

    requeued: bool
    reason: str


class Survival:
    """Keeps the record of one start of a run inside a job, and asks SLURM when it is told what happens."""

    def __init__(
        self,
        path: Path,
        here: Allocation,
        *,
        max_requeues: int,
        run: Run = run_program,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._here = here
        self._limit = max_requeues
        self._run = run
        self._clock = clock
        self._verdict: Verdict | None = None
        record = read_record(path)
        if record is not None and record.job == here.key:
            self.record = record
        else:
            self.record = RequeueRecord(here.key)

    def begin(self, step: int, *, done: bool = False) -> None:
        """Writes down that a start begins after `step`. Raises NoProgressError, DiskError.

        Only SLURM's own starts count: inside an allocation a person may start as often as they like.
        """
        start = Start(self._here.restarts, self._here.node, self._clock(), step, done=done)
        self._keep(replace(self.record, starts=(*self.record.starts, start)))
        dones = [place for place, start in enumerate(self.record.starts) if start.done]
        last_of = {start.restarts: start for start in self.record.starts[dones[-1] + 1 if dones else 0 :]}
        recent = list(last_of.values())[-FRUITLESS_STARTS - 1 :]
        if len(recent) > FRUITLESS_STARTS and all(start.step == step for start in recent):
            raise NoProgressError(
                f"SLURM job {self._here.job_id} was started {FRUITLESS_STARTS} times after step {step} and never "
                "finished the next one, so it is not tried again. Give it more time (hardware.time_limit_min), warn it "
                "earlier (hydra.launcher.signal_delay_s), or look in run.log for what ended it."
            )

    def told_to_end(self, signal_name: str, copy: Callable[[float], object] | None = None) -> Verdict:
        """Decides what becomes of a run that a signal told to end, once its state is on the disk. Asks SLURM once.
        `copy` makes the run's copy, within so many seconds. Raises DiskError."""
        if self._verdict is None:
            if copy is not None and signal_name in WARNINGS and (left_s := self._left_s()) > 0:
                copy(left_s)
            self._verdict = self._decide(signal_name)
            if self.record.starts:
                *before, last = self.record.starts
                self._keep(replace(self.record, starts=(*before, replace(last, told=self._verdict.reason))))
        return self._verdict

    def _left_s(self) -> float:
        """Returns the seconds for the copy: until SLURM ends the job by itself, less what it takes to ask it."""
        seen = view_job(self._here.job_id, self._run) or JobView("RUNNING")
        if seen.state != "RUNNING":
            return 0.0
        if seen.ends is None:
            return _COPY_S
        return min(seen.ends - self._clock() - _ASKING_S, _LONGEST_COPY_S)

    def _decide(self, signal_name: str) -> Verdict:
        seen = view_job(self._here.job_id, self._run) or JobView("RUNNING")
        if self._is_queued(seen):
            return Verdict(True, f"told by {signal_name} to end; SLURM has queued job {self._here.job_id} again")
        if seen.state == "PREEMPTED" or seen.preempted:
            return self._ask(f"told by {signal_name} to end: another job needs its place")
        if seen.out_of_time or (signal_name in WARNINGS and seen.state == "RUNNING"):
            return self._ask_within_budget(f"told by {signal_name} to end")
        return Verdict(False, f"told by {signal_name} to end")

    def _ask_within_budget(self, why: str) -> Verdict:
        asked = self.record.requeues
        if asked >= self._limit:
            return Verdict(False, f"{why}; its budget of hardware.max_requeues={self._limit} is spent")
        # Counted first: a process that dies between the two must not ask for more than it may.
        self._keep(replace(self.record, requeues=asked + 1))
        verdict = self._ask(why)
        if not verdict.requeued:
            self._keep(replace(self.record, requeues=asked))
            return verdict
        return replace(verdict, reason=f"{verdict.reason} ({asked + 1} of {self._limit})")

    def _ask(self, why: str) -> Verdict:
        """Asks SLURM to queue the job again. What SLURM does counts, not what `scontrol` lives to say.

        SLURM's SIGTERM goes to every process of the job, so to `scontrol` too: often as the answer to its own request.
        """
        queued = Verdict(True, f"{why}; job {self._here.job_id} is queued again")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                run_scontrol("requeue", self._here.job_id, run=self._run)
            except SlurmError as error:
                if self._is_queued(view_job(self._here.job_id, self._run)):
                    return queued
                if not error.perhaps or attempt == _ATTEMPTS:
                    return Verdict(False, f"{why}; SLURM does not queue it again: {error}")
            else:
                return queued
        raise AssertionError("the last attempt returns")

    def _is_queued(self, seen: JobView | None) -> bool:
        return seen is not None and (seen.state in _QUEUED or seen.restarts > self._here.restarts)

    def _keep(self, record: RequeueRecord) -> None:
        self.record = record
        write_json_atomic(self._path, asdict(record))


# A controller may need several questions, and seconds for each.
_ASKING_S = 60.0
# The copy may take so long if nobody knows when the job ends.
_COPY_S = 120.0
# A job may be warned hours ahead, but a file system may not answer.
_LONGEST_COPY_S = 300.0
# A request that a signal ended may not have reached SLURM.
_ATTEMPTS = 3
_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "NODE_FAIL"})
_kept: list[str] = []


def keep_warnings() -> None:
    """Keeps warnings in a job, from now on until the run has handlers of its own. It has to be called before anything
    that takes long."""
    if not os.environ.get("SLURM_JOB_ID") or threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.Signals[name] for name in WARNINGS):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _keep_signal)


def kept_warning() -> str | None:
    """Returns the name of the first kept warning, for code that could be late for it, or None."""
    if _kept:
        return _kept[0]
    return None


def take_warning() -> str | None:
    """Returns the first kept warning and forgets all, for the code that answers it."""
    first = kept_warning()
    _kept.clear()
    return first


def _keep_signal(number: int, _: FrameType | None) -> None:
    _kept.append(signal.Signals(number).name)
