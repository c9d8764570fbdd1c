"""This module freezes what a sweep's jobs run, as it was when they were submitted: code, conf/, launchers/, and each
job's configuration.

Invariants:
- Jobs compose from the frozen conf/ and import the frozen package; an edit after the submission changes no job, and
  neither does the time of its start.
- A job whose configuration differs all the same (its environment does) is refused, and the keys are named. One that
  meets other packages is warned of: they are not frozen, and a run that was queued again must be able to end.
- The snapshot names its commit and holds the differences to it, with this process's secrets masked.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.check.findings import Finding, warning
from swe_rl.config.compose import Composed
from swe_rl.config.composition.values import flatten_config, plain_config
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import PACKAGE, conf_dir, launchers_dir, option_files, sweeps_dir
from swe_rl.config.secrets import mask_text
from swe_rl.extension.code import copy_code
from swe_rl.files.disk import write_text_atomic
from swe_rl.files.redactor import MASK
from swe_rl.logger.summary import SNAPSHOT, git_difference, git_state, package_versions

if TYPE_CHECKING:
    from omegaconf import DictConfig

FOLDER = "frozen"
_VERSIONS = "versions.json"
_CODE = "code.json"
_TIMES = "times.json"
TIMES_VARIABLE = "SWE_RL_TIMES"
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
# A message names so many keys that differ, and counts the others.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Frozen:
    """Names a frozen folder. `config_dir` is the copy of the user's own options, if there were any."""

    folder: Path
    config_dir: Path | None
    # Has the copies of job.code, of all jobs together.
    code: tuple[Path, ...] = ()

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def launchers(self) -> Path:
        return self.folder / "launchers"


def freeze_jobs(
    sweep_dir: Path,
    jobs: Sequence[Composed],
    config_dir: Path | None,
    *,
    code: bool,
    shared_code: Sequence[str] = (),
) -> Frozen:
    """Copies what jobs need below `sweep_dir`. With `code` it copies the package too, for jobs in processes of their
    own.

    `shared_code` is `job.code` of jobs that nobody knows yet, the trials of a sweeper. Raises ConfigError if another
    sweep has that folder.
    """
    folder = sweep_dir / FOLDER
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError(
            f"{sweep_dir} has the jobs of another sweep already. Leave hydra.sweep.dir out, or name a new folder."
        ) from error
    shutil.copytree(conf_dir(), folder / "conf", ignore=_IGNORED)
    shutil.copytree(sweeps_dir(), folder / "sweeps", ignore=_IGNORED)
    shutil.copytree(launchers_dir(), folder / "launchers", ignore=_IGNORED)
    copy = None
    if config_dir is not None:
        copy = folder / "config_dir"
        _copy_options(config_dir, copy, sweep_dir)
    if code:
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=_IGNORED)
    write_text_atomic(folder / SNAPSHOT, json.dumps(git_state(PACKAGE), indent=2) + "\n")
    write_text_atomic(folder / _VERSIONS, json.dumps(package_versions(), indent=2) + "\n")
    if difference := git_difference(PACKAGE.parent):
        write_text_atomic(folder / "uncommitted.diff", mask_text(difference))
    folders = dict.fromkeys([*shared_code, *(part for job in jobs for part in job.config.job.code)])
    copies = dict(zip(folders, copy_code(list(folders), folder / "code", sweep_dir), strict=True))
    table = {part: copy.name for part, copy in copies.items()}
    write_text_atomic(folder / _CODE, json.dumps(table, indent=2) + "\n")
    write_text_atomic(folder / _TIMES, json.dumps([job.times for job in jobs], indent=2) + "\n")
    for number, job in enumerate(jobs):
        write_text_atomic(folder / "jobs" / f"{number}.json", json.dumps(flatten_config(job.config), indent=1) + "\n")
    return Frozen(folder, copy, tuple(copies.values()))


def _copy_options(config_dir: Path, target: Path, sweep_dir: Path) -> None:
    """Copies the options of the user's own. `sweep_dir` and the outputs of other runs may be below `config_dir`."""
    target.mkdir()
    for entry in option_files(config_dir, skipped=sweep_dir):
        file = target / Path(entry.path).relative_to(config_dir)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(entry.path, file)


def frozen_exports(frozen: Frozen) -> dict[str, str]:
    """Returns environment variables with which a process imports the frozen package, wherever modules point.

    Not even the folder where it starts comes before it (PYTHONSAFEPATH).
    """
    first = [str(frozen.folder), *map(str, frozen.code)]
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in first]
    return {"PYTHONPATH": os.pathsep.join([*first, *others]), "PYTHONSAFEPATH": "1"}


def use_frozen_code(frozen: Frozen) -> None:
    """Makes processes that this one starts, and batch jobs that inherit its environment, import the frozen package."""
    os.environ.update(frozen_exports(frozen))


def _find_record(job_folder: Path, number: int | None) -> Path | None:
    """Returns the record of a job, or None. A job's folder may be several levels below its sweep's
    (`hydra.sweep.subdir`)."""
    records = [parent / FOLDER / "jobs" / f"{number}.json" for parent in job_folder.absolute().parents]
    if number is not None:
        return next((record for record in records if record.is_file()), None)
    return None


def restore_times(job_folder: Path, number: int | None, tree: "DictConfig") -> None:
    """Has each `${now:FORM}` in a job's tree stand for the time at which the job was checked, not that of its start.

    The servers beside a job are told of its times by a variable.
    """
    from omegaconf import OmegaConf

    times: dict[str, str] = json.loads(os.environ.get(TIMES_VARIABLE, "{}"))
    record = _find_record(job_folder, number)
    path = record.parents[1] / _TIMES if record is not None else None
    if path is not None and path.is_file():
        times = json.loads(path.read_text(encoding="utf-8"))[number]
    OmegaConf.get_cache(tree).setdefault("now", {}).update({(form,): text for form, text in times.items()})


def code_of(job_folder: Path, number: int | None, code: Sequence[str]) -> list[Path]:
    """Returns where a job's own code is: in its sweep's frozen folder, else where `job.code` says."""
    tables = [parent / FOLDER / _CODE for parent in job_folder.absolute().parents]
    if number is not None:
        table = next((table for table in tables if table.is_file()), None)
    else:
        table = None
    if table is None:
        return [Path(part) for part in code]
    names = json.loads(table.read_text(encoding="utf-8"))
    return [table.parent / "code" / names[part] if part in names else Path(part) for part in code]


def other_packages(job_folder: Path, number: int | None) -> list[Finding]:
    """Returns a warning if this job's packages are not of the versions that were there at submission."""
    record = _find_record(job_folder, number)
    frozen = None
    if record is not None:
        frozen = record.parents[1] / _VERSIONS
    if frozen is None or not frozen.is_file():
        return []
    then = json.loads(frozen.read_text(encoding="utf-8"))
    now = package_versions()
    differ = sorted(key for key in then.keys() & now.keys() if then[key] != now[key])
    if not differ:
        return []
    shown = "; ".join(f"{key.removesuffix('_version')} {now[key]}, then {then[key]}" for key in differ)
    return [
        warning(
            "other_packages",
            "job.name",
            f"meets other packages than there were when it was submitted: {shown}. What it computes may differ from "
            "what the sweep's other jobs compute",
            "install what was there, or submit the sweep again",
            value=f"job {number}",
        )
    ]


def verify_frozen(job_folder: Path, number: int | None, composed: Composed) -> None:
    """Raises ConfigError if this job's configuration is not the one that was checked at submission."""
    record = _find_record(job_folder, number)
    if record is None:
        return
    then = json.loads(record.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(flatten_config(composed.config)))
    here = json.loads(json.dumps(plain_config(composed.config)))
    differ = sorted(key for key in then.keys() | here.keys() if not _is_same(then.get(key), here.get(key)))
    if differ:
        shown = "; ".join(f"{key}={now.get(key)}, then {then.get(key)}" for key in differ[:_SHOWN])
        more = ""
        if len(differ) > _SHOWN:
            more = f" and {len(differ) - _SHOWN} more"
        raise ConfigError(
            f"Job {number} composes to something else than what was checked when it was submitted: {shown}{more}. "
            "Environment variables that conf/ reads must be the same here as there."
        )


def _is_same(then: Any, now: Any) -> bool:
    """Tells whether a recorded value is the one of now. What the record masked is taken for the same: the process that
    submitted had other secrets in its environment, and a masked value says nothing."""
    if isinstance(then, str) and MASK in then:
        kept = [re.escape(part) for part in then.split(MASK)]
        return re.fullmatch(".*".join(kept), str(now), re.DOTALL) is not None
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(_is_same(*pair) for pair in zip(then, now, strict=True))
    if isinstance(then, dict) and isinstance(now, dict):
        return then.keys() == now.keys() and all(_is_same(then[name], now[name]) for name in then)
    return bool(then == now)
