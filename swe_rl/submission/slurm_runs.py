"""The folder of a run by the number that SLURM gave its job.

Invariants:
- Only records below the outputs are read: `submission.json` of a sweep, `requeue.json` of a run; SLURM is not asked.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from swe_rl.hardware.slurm.requeue import read_record
from swe_rl.logger.folder import RunFolder
from swe_rl.submission.record import NAME, NoSubmission, read_submission

_NUMBER = re.compile(r"\d+(_\d+)?")
_DEEPEST = 5  # outputs/project/multirun/name/time/number


def is_slurm_id(text: str) -> bool:
    """`25609`, or `25609_3` of an array, where no file or folder has that name."""
    return bool(_NUMBER.fullmatch(text)) and not Path(text).exists()


def runs_of(slurm_id: str, outputs: Path) -> list[Path]:
    """Folders of the job's runs, each once; of an array's bare number those of all its elements."""
    found = [folder for known, folder in _known(outputs) if slurm_id in (known, known.partition("_")[0])]
    return sorted({folder.resolve(): folder for folder in found}.values())


def _known(outputs: Path) -> Iterator[tuple[str, Path]]:
    """SLURM's numbers and the folders that belong to them."""
    for path in _below(outputs, NAME):
        try:
            jobs = read_submission(path.parent).jobs
        except NoSubmission:
            continue
        yield from ((job.slurm_id, path.parent / job.folder) for job in jobs if job.slurm_id)
    for path in _below(outputs, RunFolder(outputs).requeue_json.name):
        if (record := read_record(path)) is not None:
            yield record.job.rpartition(":")[2], path.parent


def _below(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(_DEEPEST):
        yield from folder.glob("*/" * depth + name)
