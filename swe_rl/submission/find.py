"""Which sweep `job=status` and `job=logs` are about: `job.runs`, or else the newest.

Invariants:
- Reads only. A sweep that nobody submitted, and the folder of one run, are looked at all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.report.compare.read import is_run, runs_below
from swe_rl.submission.freeze import FOLDER as FROZEN
from swe_rl.submission.record import NAME, NoSubmission, Submission, read_submission
from swe_rl.submission.rows import Row, plain_rows, sweep_rows


@dataclass(frozen=True, slots=True)
class Sweep:
    """`submission`: None for jobs that were not submitted."""

    folder: Path
    submission: Submission | None

    def rows(self, clock: Callable[[], float]) -> list[Row]:
        """`clock`: unix seconds."""
        if self.submission is not None:
            return sweep_rows(self.folder, self.submission, clock())
        return plain_rows([self.folder] if is_run(self.folder) else runs_below(self.folder), clock())


def find_sweep(config: Config) -> Sweep:
    """Raises NoSubmission."""
    folder = Path(config.job.runs).absolute() if config.job.runs else _newest(Path(config.paths.outputs).absolute())
    if (folder / NAME).is_file():
        return Sweep(folder, read_submission(folder))
    if folder.is_dir() and (is_run(folder) or runs_below(folder)):
        return Sweep(folder, None)
    raise NoSubmission(
        f"job.runs={folder} is no sweep's folder and no run's. Give that of a multirun: "
        f"{config.paths.outputs}/multirun/<name>/<time>."
    )


def _newest(outputs: Path) -> Path:
    found = [path for path in (outputs / "multirun").glob("*/*") if (path / NAME).is_file() or _has_runs(path)]
    if not found:
        raise NoSubmission(f"There is no sweep below {outputs / 'multirun'}. Name one: job.runs=FOLDER.")
    return max(found, key=lambda path: (_begun_s(path), path.name))


def _has_runs(path: Path) -> bool:
    return path.is_dir() and bool(runs_below(path))


def _begun_s(path: Path) -> float:
    """What was frozen at the start does not change any more; the sweep's own folder does."""
    frozen = path / FROZEN
    return (frozen if frozen.is_dir() else path).stat().st_mtime
