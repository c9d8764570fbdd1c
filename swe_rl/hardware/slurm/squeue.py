"""What SLURM says of a job, and submitting a script to it.

Invariants:
- Nobody waits for a controller that does not answer longer than a few seconds: `Queue.UNKNOWN` then.
- A job that the controller does not know any more is GONE, however it ended.
- What a job that is submitted from inside another one inherits names nothing of that one.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from swe_rl.errors import RunError

_ASK_S = 20.0
_SUBMIT_S = 60.0
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_NO_SUCH_JOB = "invalid job id"
_NOT_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_INHERITED = ("SLURM_CONF",)


class SlurmError(RunError):
    """A submission that failed. `refusal`: SLURM's words; `perhaps`: it may have taken the job all the same."""

    def __init__(self, message: str, *, refusal: str = "", perhaps: bool = False) -> None:
        super().__init__(message)
        self.refusal, self.perhaps = refusal, perhaps


class Queue(StrEnum):
    WAITS = "waits"
    RUNS = "runs"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    where: Queue
    state: str = ""  # SLURM's own word
    reason: str = ""  # why it waits, or how it ended

    @property
    def words(self) -> str:
        """`PENDING (Resources)`."""
        shown = self.reason if self.reason not in ("", "None") else ""
        return f"{self.state or self.where.value}{f' ({shown})' if shown else ''}"


Run = Callable[[Sequence[str], float, Mapping[str, str]], "subprocess.CompletedProcess[str]"]


def run_command(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(command), capture_output=True, text=True, timeout=timeout_s, env=dict(environ))


def ask(command: Sequence[str], run: Run = run_command) -> "subprocess.CompletedProcess[str] | None":
    """None where the program is not there, or nothing comes back in time."""
    try:
        return run(command, _ASK_S, os.environ)
    except (OSError, subprocess.TimeoutExpired):
        return None


def listed(command: Sequence[str], run: Run = run_command) -> str | None:
    """What `squeue` prints, nothing for jobs that it has forgotten; None where SLURM did not answer."""
    done = ask(["squeue", "--noheader", "--states=all", *command], run)
    if done is None or (done.returncode and _NO_SUCH_JOB not in done.stderr.lower()):
        return None
    return done.stdout


def job_state(job_id: str, run: Run = run_command) -> JobState:
    """Never raises: where SLURM cannot be asked, the state is UNKNOWN."""
    found = listed([f"--jobs={job_id}", "--format=%T|%r"], run)
    return JobState(Queue.UNKNOWN) if found is None else read_state(found)


def read_state(text: str) -> JobState:
    """Of squeue's lines `STATE|reason`; a job that waits or runs counts before one that has ended."""
    lines = [line.partition("|") for line in text.splitlines() if line.strip()]
    states = [JobState(_where(state.strip()), state.strip(), reason.strip()) for state, _, reason in lines]
    order = (Queue.RUNS, Queue.WAITS, Queue.GONE)
    return min(states, key=lambda one: order.index(one.where)) if states else JobState(Queue.GONE)


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None and shutil.which("squeue") is not None


def submit(
    script: Path, run: Run = run_command, environ: Mapping[str, str] | None = None, *, options: Sequence[str] = ()
) -> str:
    """The job's id; `options` win over the script's. Raises SlurmError."""
    environ = os.environ if environ is None else environ
    try:
        done = run(["sbatch", "--parsable", *options, str(script)], _SUBMIT_S, outside(environ))
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"sbatch {script} did not answer within {_SUBMIT_S:.0f} s", perhaps=True) from error
    except OSError as error:
        raise SlurmError(f"sbatch {script} cannot be run: {error}") from error
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode} and said nothing"
        perhaps = "timed out" in said.lower()
        raise SlurmError(f"sbatch {script} was refused: {said}", refusal=said, perhaps=perhaps)
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def cancel(job_id: str, run: Run = run_command) -> None:
    """Best effort; a job that has ended already is fine."""
    ask(["scancel", job_id], run)


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what belongs to the job that this process is in."""
    return {name: value for name, value in environ.items() if name in _INHERITED or not name.startswith(_NOT_INHERITED)}


def _where(state: str) -> Queue:
    if state in _WAITS:
        return Queue.WAITS
    return Queue.RUNS if state in _RUNS else Queue.GONE


# What SLURM says of all jobs of a sweep, in one question.
# - Nothing raises and nothing blocks for long: a controller that does not answer makes every job's state unknown.
# - A job that the queue has forgotten is gone; how it ended, accounting knows where a cluster keeps it.
def queue_states(ids: Sequence[str], run: Run = run_command) -> dict[str, JobState]:
    """State by id as in `ids`, `12_3` for the elements of an array."""
    if not ids:
        return {}
    answer = _squeue(ids, run)
    if answer is None:
        return dict.fromkeys(ids, JobState(Queue.UNKNOWN))
    gone = [one for one in ids if one not in answer]
    return {**{one: answer[one] for one in ids if one in answer}, **_ended(gone, run)}


def _squeue(ids: Sequence[str], run: Run) -> dict[str, JobState] | None:
    """None where SLURM did not answer."""
    heads = ",".join(dict.fromkeys(one.partition("_")[0] for one in ids))
    found = listed(["--array", f"--jobs={heads}", "--format=%i|%T|%r"], run)
    if found is None:
        return None
    lines = [line.split("|", 1) for line in found.splitlines() if "|" in line]
    return {name.strip(): read_state(rest) for name, rest in lines}


def _ended(ids: Sequence[str], run: Run) -> dict[str, JobState]:
    found = dict.fromkeys(ids, JobState(Queue.GONE))
    if not ids:
        return found
    done = ask(["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(ids)}"], run)
    for line in done.stdout.splitlines() if done is not None and not done.returncode else ():
        name, _, state = line.partition("|")
        if name in found and state:
            found[name] = JobState(Queue.GONE, state.split()[0])  # `CANCELLED by 1000`
    return found
