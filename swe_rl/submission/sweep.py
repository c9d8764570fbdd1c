"""A sweep on SLURM from its submission to its end: scripts, ids, the table while it runs, the exit status.

Invariants:
- The jobs do not need this process: whatever ends it, they go on, and `job=status` shows the same table.
- Ctrl-C ends the watching, never the jobs; it says what is left and how to watch or cancel it.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.compose import Composed
from swe_rl.logger.failure import INTERRUPTED
from swe_rl.submission.freeze import Frozen
from swe_rl.submission.record import Submission
from swe_rl.submission.rows import Outcome, Row, sweep_rows
from swe_rl.submission.submit import Prepared, prepare, submit
from swe_rl.submission.table import failures, watch


def submit_sweep(folder: Path, jobs: Sequence[Composed], frozen: Frozen, given: Sequence[str]) -> int:
    """Returns the exit status: 0 where all jobs are done, 1 where one is not, 130 after Ctrl-C.

    Raises ConfigError, SubmissionError, DiskError.
    """
    config = jobs[0].config.job
    prepared = prepare(folder, jobs, frozen, given)
    if config.dry_run:
        _print_scripts(prepared, len(jobs))
        return 0
    submission = submit(prepared)
    _print_ids(folder, submission)
    if config.detach:
        print("\n".join(ways_on(folder, submission)), flush=True)
        return 0
    return _wait(folder, submission)


def _wait(folder: Path, submission: Submission) -> int:
    rows: list[Row] = []

    def look() -> list[Row]:
        rows[:] = sweep_rows(folder, submission, time.time())
        return rows

    try:
        watch(look, sys.stdout)
    except KeyboardInterrupt:
        left = sum(not row.outcome.is_end for row in rows) if rows else len(submission.jobs)
        print(
            f"\ninterrupted: the watching, not the jobs. {left} of {len(submission.jobs)} are still queued or running."
        )
        print("\n".join(ways_on(folder, submission)), flush=True)
        return INTERRUPTED
    print("\n".join(failures(rows)), flush=True)
    return 0 if all(row.outcome is Outcome.done for row in rows) else 1


def ways_on(folder: Path, submission: Submission) -> list[str]:
    """What can be done about jobs that nobody waits for."""
    return [
        f"watch:   python -m swe_rl job=status job.runs={folder}",
        f"logs:    python -m swe_rl job=logs job.runs={folder}",
        f"cancel:  scancel {' '.join(submission.slurm_ids)}",
        f"compare: python -m swe_rl job=compare job.runs={folder}",
    ]


def _print_ids(folder: Path, submission: Submission) -> None:
    for job in submission.jobs:
        beside = "".join(f", {name} {server_id}" for name, server_id in job.beside.items())
        print(f"job {job.number}: SLURM {job.slurm_id}{beside}  {folder / job.folder}")
    jobs = "1 job" if len(submission.jobs) == 1 else f"{len(submission.jobs)} jobs"
    print(f"{jobs} submitted by {submission.launcher} in {folder}", flush=True)


def _print_scripts(prepared: Prepared, count: int) -> None:
    for path in prepared.scripts:
        print(f"# {path}\n{path.read_text(encoding='utf-8')}")
    what = f"an array of {count} jobs, {prepared.parallel} at once" if prepared.parallel else "one job"
    beside = len(prepared.scripts) - 1
    print(f"Nothing was submitted: {what}{f' and {beside} beside' if beside else ''}. By hand:", flush=True)
    print("\n".join(f"  sbatch {path}" for path in prepared.scripts), flush=True)
