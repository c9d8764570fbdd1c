"""SLURM: the job that this process is in, and its commands, all through `ask`: what it says of a job, a script
submitted to it, a job queued again or ended.

Invariants:
- Nobody waits for a controller that does not answer longer than a few seconds: `Queue.UNKNOWN` then.
- A job that the controller does not know any more is GONE, however it ended.
- What a job that is submitted from inside another one inherits names nothing of that one.
- `Allocation.job_id` names this job alone. The bare number of an array's element may be the whole array's.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from swe_rl.errors import RunError
from swe_rl.host.program import Completed, NoAnswerInTime, Unanswered, run_program

_ASK_S = 20.0
_SCONTROL_S = 10.0  # a run that was told to end has seconds, not minutes
_SUBMIT_S = 60.0
_HELD = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "SUSPENDED"}) | _HELD
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_NO_SUCH_JOB = "invalid job id"
_NOT_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_INHERITED = ("SLURM_CONF",)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_UNSET = frozenset({"", "None", "Unknown", "N/A", "(null)"})

Run = Callable[[Sequence[str], float, Mapping[str, str] | None], Completed | None]
"""As `run_program`."""


class SlurmError(RunError):
    """A command that failed. `refusal`: SLURM's words; `perhaps`: it may have done it all the same."""

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


@dataclass(frozen=True, slots=True)
class JobView:
    """`state`: `RUNNING`, `PENDING`, ...; a job that is being ended is `COMPLETING`, whatever it is going to be, and
    `reason` may know more. `preempted`: SLURM wants its place for another; `restarts`: how often it was queued again;
    `ends`: unix seconds at which SLURM will end it, where that is known.
    """

    state: str
    reason: str = ""
    preempted: bool = False
    restarts: int = 0
    ends: float | None = None

    @property
    def out_of_time(self) -> bool:
        return self.state == "TIMEOUT" or (self.state == "COMPLETING" and self.reason == "TimeLimit")


def ask(
    command: Sequence[str],
    run: Run = run_program,
    timeout_s: float = _ASK_S,
    environ: Mapping[str, str] | None = None,
) -> Completed:
    """Raises SlurmError where the program is not there, or nothing comes back in time."""
    try:
        done = run(command, timeout_s, environ)
    except Unanswered as error:
        raise SlurmError(str(error), perhaps=isinstance(error, NoAnswerInTime)) from error
    if done is None:
        raise SlurmError(f"there is no `{command[0]}` on PATH")
    return done


def scontrol(*words: str, run: Run = run_program) -> str:
    """What it printed. Raises SlurmError."""
    done = ask(["scontrol", *words], run, _SCONTROL_S)
    if done.status:
        said = " ".join((done.stderr or done.stdout).split()) or f"scontrol ended with {done.status}"
        raise SlurmError(said, refusal=said, perhaps=done.status < 0)  # a signal ended it, before or after it asked
    return done.stdout


def view(job_id: str, run: Run = run_program) -> JobView | None:
    """None where SLURM does not answer or knows no such job."""
    try:
        return parse(scontrol("show", "job", "--oneliner", job_id, run=run))
    except SlurmError:
        return None


def parse(text: str) -> JobView | None:
    """Of one line of `scontrol show job --oneliner`."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    return JobView(
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        preempted=fields.get("PreemptTime", "None") not in _UNSET,
        restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else 0,
        ends=_unix_seconds(fields.get("EndTime", "")),
    )


def _unix_seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # `Unknown`, or as SLURM_TIME_FORMAT wants it
        return None


def listed(command: Sequence[str], run: Run = run_program) -> str | None:
    """What `squeue` prints, nothing for jobs that it has forgotten; None where SLURM did not answer."""
    try:
        done = ask(["squeue", "--noheader", "--states=all", *command], run)
    except SlurmError:
        return None
    return None if done.status and _NO_SUCH_JOB not in done.stderr.lower() else done.stdout


def job_state(job_id: str, run: Run = run_program) -> JobState:
    """Never raises: where SLURM cannot be asked, the state is UNKNOWN."""
    text = listed([f"--jobs={job_id}", "--format=%T|%r"], run)
    return JobState(Queue.UNKNOWN) if text is None else read_state(text)


def read_state(text: str) -> JobState:
    """Of squeue's lines `STATE|reason`; a job that waits or runs counts before one that has ended."""
    lines = [line.partition("|") for line in text.splitlines() if line.strip()]
    states = [JobState(_where(state.strip()), state.strip(), reason.strip()) for state, _, reason in lines]
    order = (Queue.RUNS, Queue.WAITS, Queue.GONE)
    return min(states, key=lambda job: order.index(job.where)) if states else JobState(Queue.GONE)


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None and shutil.which("squeue") is not None


def submit(
    script: Path, run: Run = run_program, environ: Mapping[str, str] | None = None, *, options: Sequence[str] = ()
) -> str:
    """The job's id; `options` win over the script's. Raises SlurmError."""
    inherited = outside(os.environ if environ is None else environ)
    done = ask(["sbatch", "--parsable", *options, str(script)], run, _SUBMIT_S, inherited)
    if done.status or not done.stdout.strip():
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.status} and said nothing"
        perhaps = "timed out" in said.lower()
        raise SlurmError(f"sbatch {script} was refused: {said}", refusal=said, perhaps=perhaps)
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def cancel(job_id: str, run: Run = run_program) -> None:
    """Best effort; a job that has ended already is fine."""
    with suppress(SlurmError):
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
def queue_states(ids: Sequence[str], run: Run = run_program) -> dict[str, JobState]:
    """State by id as in `ids`, `12_3` for the elements of an array."""
    if not ids:
        return {}
    heads = ",".join(dict.fromkeys(job_id.partition("_")[0] for job_id in ids))
    text = listed(["--array", f"--jobs={heads}", "--format=%i|%T|%r"], run)
    if text is None:
        return dict.fromkeys(ids, JobState(Queue.UNKNOWN))
    lines = [line.split("|", 1) for line in text.splitlines() if "|" in line]
    queued = {name.strip(): read_state(rest) for name, rest in lines}
    states = {job_id: queued[job_id] for job_id in ids if job_id in queued}
    return {**states, **_ended([job_id for job_id in ids if job_id not in queued], run)}


def _ended(ids: Sequence[str], run: Run) -> dict[str, JobState]:
    states = dict.fromkeys(ids, JobState(Queue.GONE))
    if not ids:
        return states
    try:
        done = ask(["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(ids)}"], run)
    except SlurmError:
        return states
    for line in () if done.status else done.stdout.splitlines():
        name, _, state = line.partition("|")
        if name in states and state:
            states[name] = JobState(Queue.GONE, state.split()[0])  # `CANCELLED by 1000`
    return states


@dataclass(frozen=True, slots=True)
class Allocation:
    """`job_id` as `scontrol` takes it; `restarts`: how often the job was queued again before this start."""

    job_id: str
    cluster: str
    restarts: int
    num_nodes: int
    node: str
    node_list: str

    @property
    def key(self) -> str:
        """The same for every start of this job, different for jobs of another cluster."""
        return f"{self.cluster}:{self.job_id}"


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside a SLURM job."""
    number = environ.get("SLURM_JOB_ID", "").strip()
    if not number:
        return None
    array, element = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return Allocation(
        job_id=f"{array}_{element}" if array and element else number,
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        restarts=_number(environ.get("SLURM_RESTART_COUNT"), 0),
        num_nodes=_number(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"), 1),
        node=environ.get("SLURMD_NODENAME", ""),
        node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdigit() else otherwise
