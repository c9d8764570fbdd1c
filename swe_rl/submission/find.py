"""This module finds the sweep that `job=status` and `job=logs` are about (`job.runs`, or else the newest), and the runs
of a SLURM job.

Invariants:
- It reads only, and does not ask SLURM: `submission.json` of a sweep, `requeue.json` of a run.
- A sweep that nobody submitted, and the folder of one run, are looked at all the same. What only a dry run wrote is no
  sweep: it has no jobs, unless somebody submitted its scripts by hand and they began.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.hardware.slurm.requeue import read_record
from swe_rl.logger.folder import RunFolder
from swe_rl.report.compare.read import is_run, runs_below
from swe_rl.submission.freeze import FOLDER as FROZEN
from swe_rl.submission.record import LOGS, NAME, NoSubmission, Submission, read_submission
from swe_rl.submission.rows import JobRow, plain_rows, sweep_rows

_NUMBER = re.compile(r"\d+(_\d+)?")
# A run may be as deep as outputs/project/multirun/name/time/number.
_DEEPEST = 5


@dataclass(frozen=True, slots=True)
class Sweep:
    """Names a sweep's folder. `submission` is None for jobs that were not submitted."""

    folder: Path
    submission: Submission | None

    def rows(self) -> list[JobRow]:
        if self.submission is not None:
            return sweep_rows(self.folder, self.submission, time.time())
        return plain_rows([self.folder] if is_run(self.folder) else runs_below(self.folder), time.time())


def find_sweep(config: Config) -> Sweep:
    """Returns the sweep that the configuration means. Raises NoSubmission."""
    if config.job.runs:
        folder = Path(config.job.runs).absolute()
    else:
        folder = _newest_sweep(Path(config.paths.outputs).absolute())
    if (folder / NAME).is_file():
        submission = read_submission(folder)
        if not _has_jobs(folder, submission):
            raise NoSubmission(
                f"job.runs={folder} has only what a dry run wrote: nothing was submitted. "
                f"Submit the scripts in {folder / LOGS} by hand, or leave job.dry_run=true out."
            )
        return Sweep(folder, submission)
    if folder.is_dir() and (is_run(folder) or runs_below(folder)):
        return Sweep(folder, None)
    raise NoSubmission(
        f"job.runs={folder} is no sweep's folder and no run's. Give that of a multirun: "
        f"{config.paths.outputs}/multirun/<name>/<time>."
    )


def _newest_sweep(outputs: Path) -> Path:
    sweeps = [path for path in (outputs / "multirun").glob("*/*") if _is_sweep(path)]
    if not sweeps:
        raise NoSubmission(f"There is no sweep below {outputs / 'multirun'}. Name one: job.runs=FOLDER.")
    return max(sweeps, key=lambda path: (_begun_s(path), path.name))


def _is_sweep(path: Path) -> bool:
    if not (path / NAME).is_file():
        return _has_runs(path)
    try:
        return _has_jobs(path, read_submission(path))
    except NoSubmission:
        # Its record is damaged. Whoever asks for the newest sweep is told so.
        return True


def _has_jobs(folder: Path, submission: Submission) -> bool:
    return submission.is_submitted or _has_runs(folder)


def _has_runs(path: Path) -> bool:
    return path.is_dir() and bool(runs_below(path))


def _begun_s(path: Path) -> float:
    """Returns when a sweep began. What was frozen at the start does not change any more; the sweep's own folder
    does."""
    frozen = path / FROZEN
    return (frozen if frozen.is_dir() else path).stat().st_mtime


def is_slurm_id(text: str) -> bool:
    """Tells whether a text is `25609`, or `25609_3` of an array, and no file or folder has that name."""
    return bool(_NUMBER.fullmatch(text)) and not Path(text).exists()


def runs_of(slurm_id: str, outputs: Path) -> list[Path]:
    """Returns folders of the job's runs, each once. An array's bare number means those of all its elements."""
    folders = [folder for known, folder in _known_jobs(outputs) if slurm_id in (known, known.partition("_")[0])]
    return sorted({folder.resolve(): folder for folder in folders}.values())


def _known_jobs(outputs: Path) -> Iterator[tuple[str, Path]]:
    """Yields SLURM's numbers and the folders that belong to them."""
    for path in _paths_below(outputs, NAME):
        try:
            jobs = read_submission(path.parent).jobs
        except NoSubmission:
            continue
        yield from ((job.slurm_id, path.parent / job.folder) for job in jobs if job.slurm_id)
    for path in _paths_below(outputs, RunFolder(outputs).requeue_json.name):
        if (record := read_record(path)) is not None:
            yield record.job.rpartition(":")[2], path.parent


def _paths_below(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(_DEEPEST):
        yield from folder.glob("*/" * depth + name)
