"""This module makes one line for each job of a sweep: what the disk says of its run, and SLURM of its place in the
queue.

Invariants:
- It only reads: a file that is not there yet is empty.
- It reads `status.json`, `steps.jsonl` and the queue alone: whoever looks sees the same, also after a job was killed.
- Whether a run succeeded, only its own `status.json` says; SLURM only says whether anything is still to come.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from swe_rl.files.disk import read_json
from swe_rl.files.json_text import decode_json
from swe_rl.files.lines import printed_lines
from swe_rl.hardware.slurm.jobs import JobState, Queue, Run, queue_states
from swe_rl.host.program import run_program
from swe_rl.logger.folder import RunFolder, RunState, RunStatus
from swe_rl.submission.freeze import FOLDER as FROZEN
from swe_rl.submission.record import LOGS, Submission, SubmittedJob

# The last lines of a file are in so many bytes, however long the file is.
_TAIL_BYTES = 1 << 16
_ERRORS = ("error", "run failed", "unexpected", "slurmstepd: error", "srun: error")
# A note has at most so many characters.
_LONGEST = 300


class JobOutcome(StrEnum):
    pending = "pending"
    starting = "starting"
    running = "running"
    ending = "ending"  # Its result is on the disk, and SLURM still has it.
    requeued = "requeued"  # It waits to go on.
    done = "done"
    failed = "failed"
    interrupted = "interrupted"
    died = "died"  # It is gone without a word: killed, out of memory, or never started.
    unknown = "unknown"  # SLURM cannot be asked, and there is no run yet

    @property
    def is_end(self) -> bool:
        return self in (JobOutcome.done, JobOutcome.failed, JobOutcome.interrupted, JobOutcome.died)


@dataclass(frozen=True, slots=True)
class JobRow:
    """Holds a job's line. `silent_s` passed since its last sign of life; `note` says why it waits, or how it ended."""

    number: int
    slurm_id: str | None
    outcome: JobOutcome
    label: str
    folder: Path
    step: int | None = None
    steps: int | None = None
    tokens_per_s: float | None = None
    reward: float | None = None
    silent_s: float | None = None
    note: str = ""


def sweep_rows(folder: Path, submission: Submission, now_s: float, run: Run = run_program) -> list[JobRow]:
    """Returns the lines of a submitted sweep. `now_s` are unix seconds."""
    queue = queue_states([job.slurm_id for job in submission.jobs if job.slurm_id], run)
    servers = [job.servers() for job in submission.jobs]
    beside = queue_states([server_id for ids in servers for server_id in ids.values()], run)
    labels = _job_labels(submission.jobs)
    return [
        _make_row(folder, job, label, queue.get(job.slurm_id or ""), _describe_waiting(ids, beside), now_s)
        for job, label, ids in zip(submission.jobs, labels, servers, strict=True)
    ]


def plain_rows(folders: Sequence[Path], now_s: float) -> list[JobRow]:
    """Returns the lines of runs that nobody submitted, from their folders alone."""
    return [_row_of(RunFolder(path), number, None, path.name, None, "", now_s) for number, path in enumerate(folders)]


def _make_row(
    folder: Path,
    job: SubmittedJob,
    label: str,
    queue: JobState | None,
    beside: str,
    now_s: float,
) -> JobRow:
    row = _row_of(RunFolder(folder / job.folder), job.number, job.slurm_id, label, queue, beside, now_s)
    if row.outcome is JobOutcome.unknown and job.slurm_id is None:
        row = replace(row, note="not submitted")
    if row.steps is None:
        row = _with_steps(row, folder / FROZEN / "jobs" / f"{job.number}.json")
    if row.outcome is JobOutcome.died and job.slurm_id:
        words = last_words(folder, job.slurm_id)
        row = replace(row, note=". ".join(filter(None, (row.note, words))) or "it left no message")
    return row


def _describe_waiting(servers: Mapping[str, str], states: Mapping[str, JobState]) -> str:
    """Returns words such as `runtime0 PENDING (Priority)` for each server that is in the queue."""
    return "; ".join(f"{name} {states[job].words}" for name, job in servers.items() if states[job].where is Queue.WAITS)


def _row_of(
    run: RunFolder, number: int, slurm_id: str | None, label: str, queue: JobState | None, beside: str, now_s: float
) -> JobRow:
    status = run.status()
    last = last_step(run.steps_jsonl)
    # A lock on another host may not be seen from here.
    elsewhere = status is not None and status.host != socket.gethostname()
    outcome = outcome_of(status, queue, alive=elsewhere or run.is_locked())
    silent_s = None
    if status and not outcome.is_end:
        silent_s = max(0.0, now_s - status.heartbeat)
    return JobRow(
        number=number,
        slurm_id=slurm_id,
        outcome=outcome,
        label=label,
        folder=run.path,
        step=last.get("step", status.step if status else None),
        tokens_per_s=last.get("tokens_per_s"),
        reward=last.get("reward_mean"),
        silent_s=silent_s,
        note=_outcome_note(outcome, status, queue, beside),
    )


def outcome_of(status: RunStatus | None, queue: JobState | None, *, alive: bool) -> JobOutcome:
    """Returns what has become of a job. `alive` says of a run that is in no queue whether a process may hold its
    folder."""
    if queue is not None:
        where = queue.where
    else:
        where = Queue.UNKNOWN
    if where is Queue.WAITS:
        if status is None:
            return JobOutcome.pending
        return JobOutcome.requeued
    if where is Queue.RUNS:
        if status is None or status.status is RunState.requeued:
            return JobOutcome.starting
        if status.status is RunState.running:
            return JobOutcome.running
        return JobOutcome.ending
    if status is None:
        if where is Queue.GONE:
            return JobOutcome.died
        return JobOutcome.unknown
    if status.status in (RunState.running, RunState.requeued):
        gone = where is Queue.GONE or (queue is None and not alive)
        if gone:
            return JobOutcome.died
        return JobOutcome(status.status.value)
    return JobOutcome(status.status.value)


def _outcome_note(outcome: JobOutcome, status: RunStatus | None, queue: JobState | None, beside: str) -> str:
    if outcome in (JobOutcome.failed, JobOutcome.interrupted):
        return (status.reason if status else None) or ""
    if outcome is JobOutcome.died:
        if queue is not None and queue.state:
            return f"SLURM: {queue.words}"
        return ""
    if outcome in (JobOutcome.pending, JobOutcome.requeued):
        if queue is not None and queue.reason != "None":
            return queue.reason
        return ""
    return beside


def last_step(path: Path) -> dict[str, Any]:
    """Returns the last whole line of `steps.jsonl`, or {} if there is none."""
    try:
        lines, _ = whole_lines(path, max(0, path.stat().st_size - _TAIL_BYTES))
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = decode_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return {}


def _with_steps(row: JobRow, frozen: Path) -> JobRow:
    steps = read_json(frozen).get("trainer.steps")
    if isinstance(steps, int):
        return replace(row, steps=steps)
    return row


def _job_labels(jobs: Sequence[SubmittedJob]) -> list[str]:
    """Returns what sets each job apart: its overrides that not all have."""
    if len(jobs) > 1:
        shared = set.intersection(*(set(job.overrides) for job in jobs))
    else:
        shared = set()
    return [" ".join(text for text in job.overrides if text not in shared) if shared else "" for job in jobs]


def output_files(folder: Path, slurm_id: str) -> list[Path]:
    """Returns the files of standard output, then standard error, if it has a file of its own."""
    paths = [folder / LOGS / f"slurm-{slurm_id}.{kind}" for kind in ("out", "err")]
    return [path for path in paths if path.is_file()]


def last_lines(path: Path, lines: int, end: int | None = None) -> list[str]:
    """Returns the last `lines` lines before the byte `end` (None: the file's), of the last _TAIL_BYTES bytes there."""
    try:
        with path.open("rb") as file:
            if end is None:
                end = file.seek(0, 2)
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            text = file.read(end - start).decode(errors="replace")
    except OSError:
        return []
    kept = printed_lines(text)[1 if start else 0 :]
    if lines > 0:
        return kept[-lines:]
    return []


def whole_lines(path: Path, start: int) -> tuple[list[str], int]:
    """Returns the lines from the byte `start` on, and where they end; half a line at the end of the file is none
    yet."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
    except OSError:
        return [], start
    whole = text.rfind(b"\n") + 1
    return printed_lines(text[:whole].decode(errors="replace")), start + whole


def last_words(folder: Path, slurm_id: str) -> str:
    """Returns the last error that the job printed, or else its last line; empty if it printed nothing."""
    for path in reversed(output_files(folder, slurm_id)):
        lines = [line.strip() for line in last_lines(path, 200) if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.startswith(_ERRORS)]
        if errors:
            return " ".join(lines[errors[-1] :])[:_LONGEST]
        if lines:
            return lines[-1][:_LONGEST]
    return ""
