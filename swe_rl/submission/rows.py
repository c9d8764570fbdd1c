"""One line for each job of a sweep: what the disk says of its run, and SLURM of its place in the queue.

Invariants:
- Reading only: a file that is not there yet is empty.
- Read from `status.json`, `steps.jsonl` and the queue alone: whoever looks sees the same, also after a job was killed.
- Whether a run succeeded, only its own `status.json` says; SLURM only says whether anything is still to come.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from swe_rl.hardware.slurm.jobs import JobState, Queue, Run, queue_states
from swe_rl.host.program import run_program
from swe_rl.logger.disk import decode_json, read_json
from swe_rl.logger.folder import RunFolder, RunState, RunStatus
from swe_rl.submission.freeze import FOLDER as FROZEN
from swe_rl.submission.record import LOGS, Submission, SubmittedJob

_TAIL_BYTES = 1 << 16
_ERRORS = ("error", "run failed", "unexpected", "slurmstepd: error", "srun: error")
_LONGEST = 300  # characters


class Outcome(StrEnum):
    pending = "pending"
    starting = "starting"
    running = "running"
    ending = "ending"  # its result is on the disk, SLURM still has it
    requeued = "requeued"  # waits to go on
    done = "done"
    failed = "failed"
    interrupted = "interrupted"
    died = "died"  # gone without a word: killed, out of memory, or never started
    unknown = "unknown"  # SLURM cannot be asked, and there is no run yet

    @property
    def is_end(self) -> bool:
        return self in (Outcome.done, Outcome.failed, Outcome.interrupted, Outcome.died)


@dataclass(frozen=True, slots=True)
class JobRow:
    """`silent_s`: since its last sign of life; `note`: why it waits, or how it ended."""

    number: int
    slurm_id: str | None
    outcome: Outcome
    label: str
    folder: Path
    step: int | None = None
    steps: int | None = None
    tokens_per_s: float | None = None
    reward: float | None = None
    silent_s: float | None = None
    note: str = ""


def sweep_rows(folder: Path, submission: Submission, now_s: float, run: Run = run_program) -> list[JobRow]:
    """`now_s`: unix seconds."""
    queue = queue_states([job.slurm_id for job in submission.jobs if job.slurm_id], run)
    servers = [job.servers() for job in submission.jobs]
    beside = queue_states([server_id for ids in servers for server_id in ids.values()], run)
    labels = _labels(submission.jobs)
    return [
        _row(folder, job, label, queue.get(job.slurm_id or ""), _waiting(ids, beside), now_s)
        for job, label, ids in zip(submission.jobs, labels, servers, strict=True)
    ]


def plain_rows(folders: Sequence[Path], now_s: float) -> list[JobRow]:
    """Of runs that nobody submitted: their folders alone."""
    return [_row_of(RunFolder(path), number, None, path.name, None, "", now_s) for number, path in enumerate(folders)]


def _row(
    folder: Path,
    job: SubmittedJob,
    label: str,
    queue: JobState | None,
    beside: str,
    now_s: float,
) -> JobRow:
    row = _row_of(RunFolder(folder / job.folder), job.number, job.slurm_id, label, queue, beside, now_s)
    if row.outcome is Outcome.unknown and job.slurm_id is None:
        row = replace(row, note="not submitted")
    if row.steps is None:
        row = _with_steps(row, folder / FROZEN / "jobs" / f"{job.number}.json")
    if row.outcome is Outcome.died and job.slurm_id:
        words = last_words(folder, job.slurm_id)
        row = replace(row, note=". ".join(filter(None, (row.note, words))) or "it left no message")
    return row


def _waiting(servers: Mapping[str, str], states: Mapping[str, JobState]) -> str:
    """`runtime0 PENDING (Priority)` for each server that is in the queue."""
    return "; ".join(f"{name} {states[job].words}" for name, job in servers.items() if states[job].where is Queue.WAITS)


def _row_of(
    run: RunFolder, number: int, slurm_id: str | None, label: str, queue: JobState | None, beside: str, now_s: float
) -> JobRow:
    status, last = run.status(), last_step(run.steps_jsonl)
    elsewhere = status is not None and status.host != socket.gethostname()  # its lock may not be seen from here
    outcome = outcome_of(status, queue, alive=elsewhere or run.is_locked())
    return JobRow(
        number=number,
        slurm_id=slurm_id,
        outcome=outcome,
        label=label,
        folder=run.path,
        step=last.get("step", status.step if status else None),
        tokens_per_s=last.get("tokens_per_s"),
        reward=last.get("reward_mean"),
        silent_s=max(0.0, now_s - status.heartbeat) if status and not outcome.is_end else None,
        note=_note(outcome, status, queue, beside),
    )


def outcome_of(status: RunStatus | None, queue: JobState | None, *, alive: bool) -> Outcome:
    """`alive`: of a run that is in no queue, whether a process may hold its folder."""
    where = queue.where if queue is not None else Queue.UNKNOWN
    if where is Queue.WAITS:
        return Outcome.pending if status is None else Outcome.requeued
    if where is Queue.RUNS:
        if status is None or status.status is RunState.requeued:
            return Outcome.starting
        return Outcome.running if status.status is RunState.running else Outcome.ending
    if status is None:
        return Outcome.died if where is Queue.GONE else Outcome.unknown
    if status.status in (RunState.running, RunState.requeued):
        gone = where is Queue.GONE or (queue is None and not alive)
        return Outcome.died if gone else Outcome(status.status.value)
    return Outcome(status.status.value)


def _note(outcome: Outcome, status: RunStatus | None, queue: JobState | None, beside: str) -> str:
    if outcome in (Outcome.failed, Outcome.interrupted):
        return (status.reason if status else None) or ""
    if outcome is Outcome.died:
        return f"SLURM: {queue.words}" if queue is not None and queue.state else ""
    if outcome in (Outcome.pending, Outcome.requeued):
        return queue.reason if queue is not None and queue.reason != "None" else ""
    return beside


def last_step(path: Path) -> dict[str, Any]:
    """The last whole line of `steps.jsonl`; {} where there is none."""
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
    return replace(row, steps=steps) if isinstance(steps, int) else row


def _labels(jobs: Sequence[SubmittedJob]) -> list[str]:
    """What sets each job apart: its overrides that not all have."""
    shared = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    return [" ".join(text for text in job.overrides if text not in shared) if shared else "" for job in jobs]


def outputs(folder: Path, slurm_id: str) -> list[Path]:
    """Standard output, then standard error, where it has a file of its own."""
    paths = [folder / LOGS / f"slurm-{slurm_id}.{kind}" for kind in ("out", "err")]
    return [path for path in paths if path.is_file()]


def tail(path: Path, lines: int, end: int | None = None) -> list[str]:
    """The last `lines` lines before the byte `end` (None: the file's), of the last _TAIL_BYTES bytes there."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2) if end is None else end
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            text = file.read(end - start).decode(errors="replace")
    except OSError:
        return []
    kept = text.splitlines()[1 if start else 0 :]
    return kept[-lines:] if lines > 0 else []


def whole_lines(path: Path, start: int) -> tuple[list[str], int]:
    """Those from the byte `start` on, and where they end; half a line at the end of the file is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
    except OSError:
        return [], start
    whole = text.rfind(b"\n") + 1
    return text[:whole].decode(errors="replace").splitlines(), start + whole


def last_words(folder: Path, slurm_id: str) -> str:
    """The last error that the job printed, or else its last line; empty where it printed nothing."""
    for path in reversed(outputs(folder, slurm_id)):
        lines = [line.strip() for line in tail(path, 200) if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.startswith(_ERRORS)]
        if errors:
            return " ".join(lines[errors[-1] :])[:_LONGEST]
        if lines:
            return lines[-1][:_LONGEST]
    return ""
