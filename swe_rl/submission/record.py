"""`submission.json` says which jobs a sweep has, what each was told, where it writes, and what SLURM calls it.

Invariants:
- It is written before anything is submitted, and again with the ids; whoever watches needs this file and the disk
  alone.
- Overrides hold no secret. Paths of jobs are relative to the sweep's folder, which may be moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swe_rl.errors import UserError
from swe_rl.files.disk import write_json_atomic
from swe_rl.files.json_text import decode_json
from swe_rl.hardware.rendezvous import Meeting
from swe_rl.hardware.slurm.batch_script import job_key

NAME = "submission.json"
# This folder has the scripts, and what jobs print.
LOGS = "slurm"


class NoSubmission(UserError):
    """A folder is no sweep's, or its record cannot be read."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """Describes a job of a sweep. `slurm_id` is as SLURM shows it, `12_3` in an array; None before it was submitted.

    `beside` has the ids of its servers, by name, as they were submitted; `meeting` is the folder where it meets them.
    """

    number: int
    folder: str
    overrides: tuple[str, ...]
    slurm_id: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)
    meeting: str | None = None

    def servers(self) -> dict[str, str]:
        """Returns the servers' ids of now: a run submits a server again that it has lost."""
        if self.meeting:
            known = Meeting(Path(self.meeting)).jobs()
        else:
            known = {}
        return {**self.beside, **{name: server_id for name, server_id in known.items() if name in self.beside}}

    def server_logs(self) -> dict[str, Path]:
        """Returns what its servers print, by their names."""
        if not self.meeting:
            return {}
        meeting = Meeting(Path(self.meeting))
        logs = {job_key(node): meeting.log(node) for node in range(len(self.beside))}
        return {name: path for name, path in logs.items() if path.is_file()}


@dataclass(frozen=True, slots=True)
class Submission:
    """Describes a submitted sweep. `scripts` are relative to the folder; `config_dir` is the frozen copy of the user's
    own options."""

    launcher: str
    jobs: tuple[SubmittedJob, ...]
    scripts: tuple[str, ...] = ()
    config_dir: str | None = None

    @property
    def is_submitted(self) -> bool:
        """Tells whether SLURM has taken a job. A dry run, and a submission that failed, leave a record without any."""
        return any(job.slurm_id for job in self.jobs)

    @property
    def slurm_ids(self) -> list[str]:
        """Returns what `scancel` takes: an array once, companions too."""
        ids = [job.slurm_id.partition("_")[0] for job in self.jobs if job.slurm_id]
        return list(dict.fromkeys([*ids, *(server_id for job in self.jobs for server_id in job.servers().values())]))

    def with_ids(self, ids: Sequence[str | None], beside: Sequence[Mapping[str, str]]) -> "Submission":
        jobs = zip(self.jobs, ids, beside, strict=True)
        return replace(self, jobs=tuple(replace(job, slurm_id=name, beside=dict(more)) for job, name, more in jobs))


def write_submission(folder: Path, submission: Submission) -> None:
    """Writes the record. Raises DiskError."""
    write_json_atomic(folder / NAME, asdict(submission))


def read_submission(folder: Path) -> Submission:
    """Reads the record. Raises NoSubmission."""
    try:
        values = decode_json((folder / NAME).read_bytes())
        jobs = tuple(_parse_job(entry) for entry in values["jobs"])
        return Submission(str(values["launcher"]), jobs, tuple(values["scripts"]), values["config_dir"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoSubmission(f"{folder} has no readable {NAME}: it is not the folder of a submitted sweep") from error


def _parse_job(values: Mapping[str, Any]) -> SubmittedJob:
    return SubmittedJob(
        number=int(values["number"]),
        folder=str(values["folder"]),
        overrides=tuple(map(str, values["overrides"])),
        slurm_id=values["slurm_id"],
        beside={str(name): str(server_id) for name, server_id in values["beside"].items()},
        meeting=values["meeting"],
    )
