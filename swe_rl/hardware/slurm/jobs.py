"""This module knows the SLURM job that this process is in, and gives SLURM's commands, all through `ask_slurm`: what it
says of a job, a script submitted to it, a job queued again or ended.

Invariants:
- Nobody waits for a controller that does not answer longer than a few seconds: `Queue.UNKNOWN` then.
- A job that the controller does not know any more is GONE, however it ended.
- A job that is submitted from inside another one inherits nothing that names that one.
- What a user has set for his own looks at the queue (formats, filters, times) changes no answer here. What says which
  cluster is meant, or who asks, stays.
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
from swe_rl.files.lines import lines_of
from swe_rl.host.program import Completed, NoAnswerInTime, Unanswered, asking_slurm, run_program

# A busy controller answers within this time.
_ASK_S = 20.0
# A run that was told to end has seconds, not minutes.
_SCONTROL_S = 10.0
# sbatch waits for the controller to write the job down.
_SUBMIT_S = 60.0
_HELD = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "SUSPENDED"}) | _HELD
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_NO_SUCH_JOB = "invalid job id"
_NOT_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
# These variables say whom to ask, and as whom.
_INHERITED = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
# A message says this if an array is too large.
DIVIDE = "divide the sweep into several, each with fewer values"
_MAX_ARRAY_SIZE = re.compile(r"^MaxArraySize\s*=\s*(\d+)", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_UNSET = frozenset({"", "None", "Unknown", "N/A", "(null)"})

Run = Callable[[Sequence[str], float, Mapping[str, str] | None], Completed | None]
"""As `run_program`."""


class SlurmError(RunError):
    """A command failed. `refusal` has SLURM's words; `perhaps` says that it may have done it all the same."""

    def __init__(self, message: str, *, refusal: str = "", perhaps: bool = False) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.perhaps = perhaps


class Queue(StrEnum):
    WAITS = "waits"
    RUNS = "runs"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    where: Queue
    # This is SLURM's own word.
    state: str = ""
    # Says why the job waits, or how it ended.
    reason: str = ""

    @property
    def words(self) -> str:
        """Returns words such as `PENDING (Resources)`."""
        shown = ""
        if self.reason not in ("", "None"):
            shown = self.reason
        return f"{self.state or self.where.value}{f' ({shown})' if shown else ''}"


@dataclass(frozen=True, slots=True)
class JobView:
    """Holds what SLURM says of a job. `state` is `RUNNING`, `PENDING`, ...; a job that is being ended is `COMPLETING`,
    whatever it is going to be, and `reason` may know more.

    If `preempted`, SLURM wants its place for another job. `restarts` counts how often it was queued again. SLURM will
    end it at `ends` (unix seconds), if that is known.
    """

    state: str
    reason: str = ""
    preempted: bool = False
    restarts: int = 0
    ends: float | None = None

    @property
    def out_of_time(self) -> bool:
        return self.state == "TIMEOUT" or (self.state == "COMPLETING" and self.reason == "TimeLimit")


def ask_slurm(
    command: Sequence[str],
    run: Run = run_program,
    timeout_s: float = _ASK_S,
    environ: Mapping[str, str] | None = None,
) -> Completed:
    """Runs a command of SLURM's. Raises SlurmError if the program is not there, or nothing comes back in time."""
    try:
        done = run(command, timeout_s, asking_slurm(os.environ) if environ is None else environ)
    except Unanswered as error:
        raise SlurmError(str(error), perhaps=isinstance(error, NoAnswerInTime)) from error
    if done is None:
        raise SlurmError(f"there is no `{command[0]}` on PATH")
    return done


def array_problem(size: int, run: Run = run_program) -> str:
    """Says why the cluster takes no array of so many jobs; empty if it does, or cannot be asked."""
    if size < 2:
        return ""
    try:
        limit = _MAX_ARRAY_SIZE.search(run_scontrol("show", "config", run=run))
    except SlurmError:
        return ""
    if limit is None or size <= int(limit[1]):
        return ""
    return (
        f"the sweep has {size} jobs, and this cluster takes at most {limit[1]} in one array (MaxArraySize of "
        "`scontrol show config`)"
    )


def run_scontrol(*words: str, run: Run = run_program) -> str:
    """Returns what scontrol printed. Raises SlurmError."""
    done = ask_slurm(["scontrol", *words], run, _SCONTROL_S)
    if done.status:
        said = " ".join((done.stderr or done.stdout).split()) or f"scontrol ended with {done.status}"
        # A signal ended scontrol, before or after it asked.
        raise SlurmError(said, refusal=said, perhaps=done.status < 0)
    return done.stdout


def view_job(job_id: str, run: Run = run_program) -> JobView | None:
    """Returns what SLURM says of a job, or None if it does not answer or knows no such job."""
    try:
        return parse_job(run_scontrol("show", "job", "--oneliner", job_id, run=run))
    except SlurmError:
        return None


def parse_job(text: str) -> JobView | None:
    """Reads one line of `scontrol show job --oneliner`."""
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
    except ValueError:
        # The text may be `Unknown`, or have the form of a user's SLURM_TIME_FORMAT.
        return None


def list_queue(command: Sequence[str], run: Run = run_program) -> str | None:
    """Returns what `squeue` prints, which is nothing for jobs that it has forgotten, or None if SLURM did not
    answer."""
    try:
        done = ask_slurm(["squeue", "--noheader", "--states=all", *command], run)
    except SlurmError:
        return None
    if done.status and _NO_SUCH_JOB not in done.stderr.lower():
        return None
    return done.stdout


def job_state(job_id: str, run: Run = run_program) -> JobState:
    """Returns a job's state. It never raises: if SLURM cannot be asked, the state is UNKNOWN."""
    text = list_queue([f"--jobs={job_id}", "--format=%T|%r"], run)
    if text is None:
        return JobState(Queue.UNKNOWN)
    return read_state(text)


def read_state(text: str) -> JobState:
    """Reads squeue's lines `STATE|reason`; a job that waits or runs counts before one that has ended."""
    lines = [line.partition("|") for line in lines_of(text, ends=False) if line.strip()]
    states = [JobState(_queue_of(state.strip()), state.strip(), reason.strip()) for state, _, reason in lines]
    order = (Queue.RUNS, Queue.WAITS, Queue.GONE)
    if states:
        return min(states, key=lambda job: order.index(job.where))
    return JobState(Queue.GONE)


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None and shutil.which("squeue") is not None


def submit_script(
    script: Path, run: Run = run_program, environ: Mapping[str, str] | None = None, *, options: Sequence[str] = ()
) -> str:
    """Submits a script and returns the job's id; `options` win over the script's. Raises SlurmError."""
    inherited = environment_outside(os.environ if environ is None else environ)
    done = ask_slurm(["sbatch", "--parsable", *options, str(script)], run, _SUBMIT_S, inherited)
    if done.status or not done.stdout.strip():
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.status} and said nothing"
        perhaps = "timed out" in said.lower()
        raise SlurmError(f"sbatch {script} was refused: {said}", refusal=said, perhaps=perhaps)
    return lines_of(done.stdout.strip(), ends=False)[-1].partition(";")[0]


def cancel_job(job_id: str, run: Run = run_program) -> None:
    """Cancels a job as far as possible; a job that has ended already is fine."""
    with suppress(SlurmError):
        ask_slurm(["scancel", job_id], run)


def environment_outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without what belongs to the job that this process is in."""
    return {name: value for name, value in environ.items() if name in _INHERITED or not name.startswith(_NOT_INHERITED)}


def _queue_of(state: str) -> Queue:
    if state in _WAITS:
        return Queue.WAITS
    if state in _RUNS:
        return Queue.RUNS
    return Queue.GONE


# The functions below ask about all jobs of a sweep in one question. Nothing raises and nothing blocks for long: if a
# controller does not answer, every job's state is unknown. A job that the queue has forgotten is gone; accounting knows
# how it ended, if a cluster keeps it.
def queue_states(ids: Sequence[str], run: Run = run_program) -> dict[str, JobState]:
    """Maps ids, as in `ids`, to states; `12_3` is an element of an array."""
    if not ids:
        return {}
    heads = ",".join(dict.fromkeys(job_id.partition("_")[0] for job_id in ids))
    text = list_queue(["--array", f"--jobs={heads}", "--format=%i|%T|%r"], run)
    if text is None:
        return dict.fromkeys(ids, JobState(Queue.UNKNOWN))
    lines = [line.split("|", 1) for line in lines_of(text, ends=False) if "|" in line]
    queued = {name.strip(): read_state(rest) for name, rest in lines}
    states = {job_id: queued[job_id] for job_id in ids if job_id in queued}
    return {**states, **_ended_states([job_id for job_id in ids if job_id not in queued], run)}


def _ended_states(ids: Sequence[str], run: Run) -> dict[str, JobState]:
    states = dict.fromkeys(ids, JobState(Queue.GONE))
    if not ids:
        return states
    try:
        done = ask_slurm(
            ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(ids)}"], run
        )
    except SlurmError:
        return states
    for line in () if done.status else lines_of(done.stdout, ends=False):
        name, _, state = line.partition("|")
        if name in states and state:
            # The text may be `CANCELLED by 1000`.
            states[name] = JobState(Queue.GONE, state.split()[0])
    return states


@dataclass(frozen=True, slots=True)
class Allocation:
    """Describes the job that this process is in. `job_id` is as `scontrol` takes it; `restarts` counts how often
    the job was queued again before this start."""

    job_id: str
    cluster: str
    restarts: int
    num_nodes: int
    node: str
    node_list: str

    @property
    def key(self) -> str:
        """Returns a name that is the same for every start of this job, and different for jobs of another cluster."""
        return f"{self.cluster}:{self.job_id}"


def current_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns this process's job, or None outside of one."""
    number = environ.get("SLURM_JOB_ID", "").strip()
    if not number:
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    element = environ.get("SLURM_ARRAY_TASK_ID", "")
    return Allocation(
        job_id=f"{array}_{element}" if array and element else number,
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        restarts=_parse_number(environ.get("SLURM_RESTART_COUNT"), 0),
        num_nodes=_parse_number(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"), 1),
        node=environ.get("SLURMD_NODENAME", ""),
        node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
    )


def _parse_number(text: str | None, otherwise: int) -> int:
    if text and text.isdigit():
        return int(text)
    return otherwise
