"""This module turns a sweep into batch scripts, and the scripts into jobs of SLURM's, and watches them until the last
one has ended.

Invariants:
- Everything that a job needs is below the sweep's folder before the first script is submitted.
- Either all of a sweep is submitted or none of it stays in the queue.
- Servers of jobs that have to wait for others of their array wait too: until their job has begun, not until its end.
- A dry run writes the very files that would be submitted, and runs no command of SLURM's.
- The jobs do not need this process: whatever ends it, they go on, and `job=status` shows the same table. Ctrl-C ends
  the watching; it says what is left and how to watch or cancel it.
"""

import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from swe_rl.check.sweep import job_folders
from swe_rl.config.compose import Composed
from swe_rl.config.launcher import merge_slurm_settings, paste_override
from swe_rl.errors import UserError
from swe_rl.files.disk import write_text_atomic
from swe_rl.hardware.rendezvous import meeting_of
from swe_rl.hardware.slurm.batch_script import Array, Companion, batch_script, companion_jobs
from swe_rl.hardware.slurm.jobs import DIVIDE, Run, SlurmError, array_problem, cancel_job, has_slurm
from swe_rl.hardware.slurm.jobs import submit_script as sbatch
from swe_rl.host.program import run_program
from swe_rl.logger.failure import INTERRUPTED
from swe_rl.submission.freeze import TIMES_VARIABLE, Frozen, frozen_exports
from swe_rl.submission.record import LOGS, Submission, SubmittedJob, write_submission
from swe_rl.submission.rows import JobOutcome, JobRow, sweep_rows
from swe_rl.submission.table import describe_failures, watch_rows

_SCRIPT = "jobs.sh"
# This is the launcher's own default.
_PARALLEL = 256
_PERHAPS = "It may have taken the job all the same: look at `squeue --me` before you submit it again."
_OF_SUBMISSION = frozenset({"job.dry_run", "job.detach"})


class SubmissionError(UserError):
    """SLURM is not here, or did not take the jobs."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Describes a sweep whose scripts are written. `beside[n]` are the companions of job n. `parallel` says how many
    jobs of the array run at once; 0 means that there is no array."""

    folder: Path
    submission: Submission
    script: Path
    beside: tuple[tuple[Companion, ...], ...]
    parallel: int

    @property
    def scripts(self) -> list[Path]:
        return [self.script, *(companion.path for companions in self.beside for companion in companions)]


def prepare_submission(folder: Path, jobs: Sequence[Composed], frozen: Frozen, given: Sequence[str]) -> Prepared:
    """Writes scripts and record below `folder`; `given` are the command line's overrides. Raises ConfigError."""
    first = jobs[0]
    settings = merge_slurm_settings(first.config, first.launcher_settings, given)
    logs = folder / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    array = None
    if len(jobs) > 1:
        array = Array(len(jobs), int(settings.get("array_parallelism") or _PARALLEL))
    exports = frozen_exports(frozen)
    text = batch_script(
        settings,
        _task_command(settings, folder, array),
        logs=logs,
        chdir=Path.cwd(),
        exports=exports,
        array=array,
        launchers=frozen.launchers,
    )
    script = logs / _SCRIPT
    write_text_atomic(script, text)
    folders = job_folders(jobs)
    beside = tuple(
        _make_companions(job, folder / name, frozen, exports) for job, name in zip(jobs, folders, strict=True)
    )
    submission = Submission(
        launcher=first.launcher,
        jobs=tuple(
            SubmittedJob(number, name, tuple(job.overrides), meeting=_meeting_folder(companions))
            for number, (job, name, companions) in enumerate(zip(jobs, folders, beside, strict=True))
        ),
        scripts=(f"{LOGS}/{_SCRIPT}",),
        config_dir=None if frozen.config_dir is None else str(frozen.config_dir.relative_to(folder)),
    )
    write_submission(folder, submission)
    return Prepared(folder, submission, script, beside, array.at_once if array else 0)


def submit_prepared(prepared: Prepared, run: Run = run_program) -> Submission:
    """Hands everything to SLURM and notes the ids. Raises SubmissionError; then nothing is left in the queue."""
    if not has_slurm():
        raise SubmissionError(
            "sbatch and squeue were not found here: submit from a login node of the cluster. "
            f"The scripts are in {prepared.script.parent}; job.dry_run=true prints them."
        )
    if problem := array_problem(len(prepared.submission.jobs), run):
        raise SubmissionError(f"{problem[0].upper()}{problem[1:]}. Nothing was submitted: {DIVIDE}.")
    taken: list[str] = []
    try:
        return _submit_all(prepared, run, taken)
    except BaseException:
        for job_id in reversed(taken):
            cancel_job(job_id, run)
        raise


def _submit_script(script: Path, run: Run, taken: list[str], options: Sequence[str] = ()) -> str:
    """Submits a script and returns the job's id, which is in `taken` then. Raises SubmissionError."""
    try:
        with _no_ctrl_c():
            taken.append(sbatch(script, run, options=options))
        return taken[-1]
    except SlurmError as error:
        if error.refusal:
            what = f"SLURM refused {script}: {error.refusal}"
        else:
            what = str(error)
        left = "Nothing of this sweep is in the queue."
        if error.perhaps:
            left = _PERHAPS
        raise SubmissionError(f"{what}. {left}") from error


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: a job whose number nobody has read would stay in the queue."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        if not heard:
            print("Ctrl-C: sbatch has to answer first, so that its job can be cancelled", file=sys.stderr, flush=True)
        heard.append(number)

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if heard:
        signal.raise_signal(signal.SIGINT)


def _submit_all(prepared: Prepared, run: Run, taken: list[str]) -> Submission:
    main = _submit_script(prepared.script, run, taken)
    jobs = prepared.submission.jobs
    if len(jobs) > 1:
        ids = [f"{main}_{job.number}" for job in jobs]
    else:
        ids = [main]
    beside: list[dict[str, str]] = []
    for number, (job_id, companions) in enumerate(zip(ids, prepared.beside, strict=True)):
        if prepared.parallel and number >= prepared.parallel:
            waits = [f"--dependency=after:{job_id}"]
        else:
            waits = []
        beside.append({})
        for companion in companions:
            beside[-1][companion.job_key] = _submit_script(companion.path, run, taken, waits)
        if companions:
            companions[0].meeting.note_jobs(trainer=job_id, **beside[-1])
    submission = prepared.submission.with_ids(ids, beside)
    write_submission(prepared.folder, submission)
    return submission


def _make_companions(job: Composed, folder: Path, frozen: Frozen, exports: Mapping[str, str]) -> tuple[Companion, ...]:
    """Makes the companions and writes their scripts. They are jobs of their own, which nobody submits once more."""
    overrides = [override for override in job.overrides if override.lstrip("+").partition("=")[0] not in _OF_SUBMISSION]
    meeting = meeting_of(job.config, folder)
    times = {TIMES_VARIABLE: json.dumps(job.times)} if job.times else {}
    made = companion_jobs(
        job.config,
        overrides,
        meeting,
        exports={**exports, **times},
        config_dir=frozen.config_dir,
        launchers=frozen.launchers,
    )
    for companion in made:
        companion.meeting.create()
        write_text_atomic(companion.path, companion.script)
    return tuple(made)


def _meeting_folder(companions: Sequence[Companion]) -> str | None:
    if companions:
        return str(companions[0].meeting.folder)
    return None


def _task_command(settings: Mapping[str, Any], folder: Path, array: Array | None) -> list[str]:
    python = str(settings.get("python") or sys.executable)
    return [python, "-u", "-m", "swe_rl.cli.slurm_task", str(folder), "$SLURM_ARRAY_TASK_ID" if array else "0"]


def submit_sweep(folder: Path, jobs: Sequence[Composed], frozen: Frozen, given: Sequence[str]) -> int:
    """Submits and watches a sweep. Returns the exit status: 0 if all jobs are done, 1 if one is not, 130 after Ctrl-C.

    Raises ConfigError, SubmissionError, DiskError.
    """
    config = jobs[0].config.job
    prepared = prepare_submission(folder, jobs, frozen, given)
    if config.dry_run:
        _print_scripts(prepared, len(jobs))
        return 0
    submission = submit_prepared(prepared)
    _print_ids(folder, submission)
    if config.detach:
        print("\n".join(ways_on(folder, submission)), flush=True)
        return 0
    return _wait_for_jobs(folder, submission)


def _wait_for_jobs(folder: Path, submission: Submission) -> int:
    rows: list[JobRow] = []

    def look() -> list[JobRow]:
        rows[:] = sweep_rows(folder, submission, time.time())
        return rows

    try:
        watch_rows(look, sys.stdout)
    except KeyboardInterrupt:
        if rows:
            left = sum(not row.outcome.is_end for row in rows)
        else:
            left = len(submission.jobs)
        print(
            f"\ninterrupted: the watching, not the jobs. {left} of {len(submission.jobs)} are still queued or running."
        )
        print("\n".join(ways_on(folder, submission)), flush=True)
        return INTERRUPTED
    print("\n".join(describe_failures(rows)), flush=True)
    if all(row.outcome is JobOutcome.done for row in rows):
        return 0
    return 1


def ways_on(folder: Path, submission: Submission) -> list[str]:
    """Says what can be done about jobs that nobody waits for."""
    runs = paste_override("job.runs", folder)
    return [
        f"watch:   python -m swe_rl job=status {runs}",
        f"logs:    python -m swe_rl job=logs {runs}",
        f"cancel:  scancel {' '.join(submission.slurm_ids)}",
        f"compare: python -m swe_rl job=compare {runs}",
    ]


def _print_ids(folder: Path, submission: Submission) -> None:
    for job in submission.jobs:
        beside = "".join(f", {name} {server_id}" for name, server_id in job.beside.items())
        print(f"job {job.number}: SLURM {job.slurm_id}{beside}  {folder / job.folder}")
    if len(submission.jobs) == 1:
        jobs = "1 job"
    else:
        jobs = f"{len(submission.jobs)} jobs"
    print(f"{jobs} submitted by {submission.launcher} in {folder}", flush=True)


def _print_scripts(prepared: Prepared, count: int) -> None:
    for path in prepared.scripts:
        print(f"# {path}\n{path.read_text(encoding='utf-8')}")
    what = "one job"
    if prepared.parallel:
        what = f"an array of {count} jobs, {prepared.parallel} at once"
    beside = len(prepared.scripts) - 1
    print(f"Nothing was submitted: {what}{f' and {beside} beside' if beside else ''}. By hand:", flush=True)
    print("\n".join(f"  sbatch {shlex.quote(str(path))}" for path in prepared.scripts))
    print(
        f"The scripts need the copies beside them. To delete everything: rm -r {shlex.quote(str(prepared.folder))}",
        flush=True,
    )
