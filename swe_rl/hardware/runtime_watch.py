"""When a run asks for its sandbox server again or gives it up, and when a server ends because its runs have.

Invariants:
- No clock, file or network of its own: what was seen goes in with its time, what to do comes out.
- Waiting in the queue counts for nothing: a limit runs only while nothing stands in the way.
- Every state but a queue's ends after a time that the configuration names: neither side waits for ever.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from swe_rl.config.schema import RuntimeConfig
from swe_rl.hardware.slurm.jobs import JobState, Queue


class Act(StrEnum):
    USE = "use"  # it serves
    WAIT = "wait"
    RESTART = "restart"  # submit its job again; one that still runs is cancelled first
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Decision:
    act: Act
    words: str = ""


class ServerWatch:
    """The run's view of one server. `restarts`: those in a row, without a time of steady service between them."""

    def __init__(self, node: int, runtime: RuntimeConfig) -> None:
        self._name = f"sandbox server {node}"
        self._runtime = runtime
        self._away_since_s: float | None = None
        self._up_since_s: float | None = None
        self._served = False  # in its present start
        self.restarts = 0

    def look(self, now_s: float, *, alive: bool, job: JobState | None, can_submit: bool, note: str = "") -> Decision:
        """`job`: None where no job of SLURM's is known; `note`: what else there is to say while it is away."""
        if alive:
            return self._alive(now_s)
        self._up_since_s = None
        if job is not None and job.where is Queue.WAITS:
            self._away_since_s, self._served = None, False
            return Decision(Act.WAIT, f"{self._name} is in the queue, job {job.words}")
        if self._away_since_s is None:
            self._away_since_s = now_s
        away_s = now_s - self._away_since_s
        if job is not None and job.where is Queue.GONE:
            return self._again(f"the job of {self._name} has ended", can_submit)
        if away_s <= self._patience_s(job):
            where = "its job runs" if job is not None and job.where is Queue.RUNS else "no job of it is known"
            return Decision(
                Act.WAIT, f"{self._name} does not answer {'any more' if self._served else 'yet'} ({note or where})"
            )
        return self._again(f"{self._name} did not answer for {away_s:.0f} s{f' ({note})' if note else ''}", can_submit)

    def restarted(self) -> None:
        """Its job was submitted, or could not be."""
        self.restarts += 1
        self._away_since_s, self._served = None, False

    def _alive(self, now_s: float) -> Decision:
        self._away_since_s, self._served = None, True
        self._up_since_s = now_s if self._up_since_s is None else self._up_since_s
        if now_s - self._up_since_s >= self._runtime.ready_timeout_s:
            self.restarts = 0
        return Decision(Act.USE)

    def _patience_s(self, job: JobState | None) -> float:
        """A server that served and whose job runs hangs, or is cut off; else it may be starting."""
        hangs = self._served and job is not None and job.where is Queue.RUNS
        return self._runtime.lease_s if hangs else self._runtime.ready_timeout_s

    def _again(self, why: str, can_submit: bool) -> Decision:
        if not can_submit:
            return Decision(Act.LOST, why)
        if self.restarts >= self._runtime.max_restarts:
            return Decision(Act.LOST, f"{why}, and it was started {self.restarts} times anew (runtime.max_restarts)")
        return Decision(Act.RESTART, why)


class Tenancy:
    """The server's view of the runs that it is there for."""

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._runtime = runtime
        self._alone_since_s: float | None = None
        self._had = False

    def look(self, now_s: float, silences_s: Collection[float], job: JobState | None) -> str | None:
        """Why the server should end, or None. `silences_s`: of every run that has not said that it is over; `job`:
        the run's, None where none is known."""
        if any(silence_s <= self._runtime.lease_s for silence_s in silences_s):
            self._had, self._alone_since_s = True, None
            return None
        if job is not None and job.where is Queue.WAITS:
            self._alone_since_s = None
            return None
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        if job is not None and job.where is not Queue.GONE:  # it is starting, or SLURM does not answer
            limit_s = self._runtime.ready_timeout_s
            return f"the run gave no sign of life for {alone_s:.0f} s" if alone_s > limit_s else None
        if self._had:
            return f"the run gave no sign of life for {min(silences_s):.0f} s" if silences_s else "the run is over"
        if job is not None:
            return "the run's job has ended" if alone_s > self._runtime.lease_s else None
        return f"no run came within {alone_s:.0f} s" if alone_s > self._runtime.ready_timeout_s else None
