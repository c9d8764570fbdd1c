"""This module hands one checked configuration to its job module, with or without a folder.

Invariants:
- `swe_rl.job.<name>` is imported only when it is run.
- A run's folder holds `.hydra/`, `config.yaml` and `plan.json` before its job starts, secrets masked. They are never
  written over those of a run that this start does not go on with, nor over somebody's own files.
- A job that refuses its input (UserError) before it wrote anything leaves no folder behind that was not there before.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.check.check import check_config
from swe_rl.check.findings import Finding, Host, error, forbids_start
from swe_rl.check.packages import require_here
from swe_rl.check.sweep import check_sweep, list_numbers
from swe_rl.config.choices import TRAININGS, JobName, OutputFormat
from swe_rl.config.compose import Composed, from_tree, given_overrides, resolved_yaml
from swe_rl.config.launcher import is_slurm
from swe_rl.config.ranges import replace_out_of_range
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_text, mask_tree
from swe_rl.config.store import register_schema
from swe_rl.config.yaml_text import parse_yaml, render_yaml
from swe_rl.errors import RunError, UserError
from swe_rl.extension.code import code_facts, use_code
from swe_rl.extension.make import require_importable
from swe_rl.files.disk import only_shown, read_json, write_text_atomic
from swe_rl.hardware.rendezvous import with_meeting
from swe_rl.hardware.slurm.jobs import DIVIDE, array_problem, current_allocation
from swe_rl.host.terminal import status_after_output
from swe_rl.job.export import with_model_folder
from swe_rl.logger.failure import print_finding, report_failure
from swe_rl.run.which_folder import WRITTEN_FIRST, choose_folder, earlier_of, folder_of_ended, remove_untouched
from swe_rl.submission.freeze import code_of, other_packages, restore_times, verify_frozen

if TYPE_CHECKING:
    from omegaconf import DictConfig


class JobFailed(RunError):
    """A job of a sweep ended badly, and was reported where it ran; it ends with that job's exit status."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


# `job.objective` names the figure of a run's `summary.json` that Hydra's sweepers get as what the job returned. A
# figure that was not measured is an error, never a number that a sweeper would go by.
class ObjectiveError(RunError):
    """The job is over, and what it was run for was not measured."""


def read_objective(config: Config, fresh: Path) -> float | None:
    """Returns the figure that job.objective names, or None if it names nothing. `fresh` is the folder that Hydra made.
    Raises ObjectiveError."""
    name = config.job.objective
    if name is None:
        return None
    path = folder_of_ended(config, fresh).summary_json
    figures = {key: value for key, value in read_json(path).items() if _is_figure(value)}
    if name not in figures:
        raise ObjectiveError(
            f"job.objective={name} was not measured, so the job has nothing to return: {path} has no number there. "
            f"Figures that it has: {', '.join(figures) or 'none'}."
        )
    return float(figures[name])


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_WITH_FOLDER = TRAININGS | {JobName.rollout, JobName.eval, JobName.sft, JobName.serve, JobName.runtime}
FOLDERLESS = frozenset(JobName) - _WITH_FOLDER


def may_start(composed: Composed, *, again: bool = False) -> bool:
    """Tells whether the job may start. Prints findings to stderr (with `again` only if they refuse the job).

    `check` and `describe` speak for themselves.
    """
    if composed.config.job.name in (JobName.check, JobName.describe):
        return True
    findings = check_config(composed.config, composed.origins)
    refused = forbids_start(findings, composed.config.job.strict)
    if refused or not again:
        _print_findings(findings)
    if refused:
        print("Nothing was started.", file=sys.stderr, flush=True)
    return not refused


def _print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        print_finding(finding, sys.stderr)


def guard_all(jobs: Sequence[Composed]) -> bool:
    """Does what `may_start` does for every job of a sweep and for the sweep as a whole.

    What several jobs share is said once.
    """
    refused = 0
    said: dict[tuple[str, str, str], list[int]] = {}
    findings_by_key: dict[tuple[str, str, str], Finding] = {}
    for number, job in enumerate(jobs):
        findings = check_config(job.config, job.origins)
        refused += forbids_start(findings, job.config.job.strict)
        for finding in findings:
            key = (finding.rule_id, finding.key, finding.message)
            said.setdefault(key, []).append(number)
            findings_by_key.setdefault(key, finding)
    for key, numbers in said.items():
        where = ""
        if len(numbers) != len(jobs):
            where = f"job {list_numbers(numbers, 8)}: "
        print_finding(findings_by_key[key], sys.stderr, where)
    whole = check_sweep(jobs)
    for finding in whole:
        print_finding(finding, sys.stderr)
    strict = any(job.config.job.strict for job in jobs)
    if refused or forbids_start(whole, strict):
        print(f"Nothing was started: {refused or 'all'} of {len(jobs)} jobs cannot run.", file=sys.stderr, flush=True)
        return False
    return True


def run_folderless(composed: Composed) -> int:
    """Runs a job without a folder and returns its exit status. `plan` answers before the rules do, and also if they
    refuse: its table helps to mend what they name."""
    if composed.origins.assumed:
        print(composed.origins.assumed, file=sys.stderr, flush=True)
    if composed.config.job.name is JobName.plan:
        status = _run_question(composed)
        return status_after_output(status if may_start(composed) else 2)
    if may_start(composed):
        return status_after_output(_run_question(composed))
    return 2


def _run_question(composed: Composed) -> int:
    module = _job_module(composed.config.job.name)
    if composed.config.job.code and composed.config.job.name not in (JobName.check, JobName.plan, JobName.describe):
        use_code([Path(part) for part in composed.config.job.code])
    return int(module.run(composed.config, None, composed.origins))


def run_all_folderless(jobs: Sequence[Composed]) -> int:
    """Runs one job after the other, each under its number and what sets it apart. Returns the worst exit status."""
    worst = 0
    for number, job in enumerate(jobs):
        if job.config.job.format is not OutputFormat.json:
            print(
                f"{'' if number == 0 else chr(10)}job {number}: {' '.join(map(mask_text, job.overrides))}", flush=True
            )
        worst = max(worst, run_folderless(job))
    return worst


def checks_pass(jobs: Sequence[Composed]) -> bool:
    """Prints what the rules over all jobs say of a sweep with `job=check`, on stderr. Tells whether they pass."""
    if not any(job.config.job.name is JobName.check for job in jobs):
        return True
    findings = [*check_sweep(jobs), *_array_fits(jobs)]
    _print_findings(findings)
    return not forbids_start(findings, any(job.config.job.strict for job in jobs))


def _array_fits(jobs: Sequence[Composed]) -> list[Finding]:
    """Returns what only the cluster knows of a sweep, if job.preflight lets it be asked."""
    if not is_slurm(jobs[0].launcher_settings) or not any(job.config.job.preflight for job in jobs):
        return []
    problem = array_problem(len(jobs))
    if problem:
        return [error("sweep_array", "hydra/launcher", problem, DIVIDE, value=len(jobs))]
    return []


@dataclass(frozen=True, slots=True)
class Ended:
    """Says how a job ended. `objective` is the figure that job.objective names, if the job ended well."""

    status: int
    objective: float | None = None


def run_in_folder(tree: "DictConfig", *, again: bool = True) -> Ended:
    """Runs one job of Hydra's in its output folder; every error was reported by then.

    With `again`, what the check only warns of was said before.
    """
    from hydra.core.hydra_config import HydraConfig

    register_schema()
    hydra: Any = HydraConfig.instance().cfg
    folder = Path(hydra.hydra.runtime.output_dir)
    was_empty = not any(folder.iterdir())
    # The next job of a local sweep runs in this process, too.
    with _environment_of_before():
        try:
            return _run_composed(tree, hydra, folder, again=again)
        except Exception as error:
            status = report_failure(error, folder)
            if status == UserError.exit_status and was_empty:
                remove_untouched(folder)
                with suppress(OSError):
                    folder.parent.rmdir()
            return Ended(status)


def _run_composed(tree: "DictConfig", hydra: Any, folder: Path, *, again: bool) -> Ended:
    number = _job_number(hydra)
    restore_times(folder, number, tree)
    composed = from_tree(tree, hydra.hydra, given_overrides(hydra.hydra.overrides.task))
    verify_frozen(folder, number, composed)
    _print_findings(other_packages(folder, number))
    os.environ.update(composed.config.hardware.env_vars)
    use_code(code_of(folder, number, composed.config.job.code))
    if not may_start(composed, again=again):
        return Ended(2)
    status, config = _start_job(composed, folder, tree, hydra)
    return Ended(status, None if status else read_objective(config, folder))


@contextmanager
def _environment_of_before() -> Iterator[None]:
    """Gives the variables of this process back when the block ends."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _job_number(hydra: "DictConfig") -> int | None:
    """Returns the job's number in its sweep, or None for a single run."""
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(hydra.hydra.job, "num"):
        return None
    return int(hydra.hydra.job.num)


def _start_job(composed: Composed, folder: Path, tree: "DictConfig", hydra: "DictConfig") -> tuple[int, Config]:
    """Runs the job. Returns its exit status, and the configuration that it ran with."""
    from swe_rl.job.plan import make_plan

    require_here(composed.config, Host())
    require_importable(composed.config)
    config = composed.config
    here = current_allocation(os.environ)
    # A server has the overrides of its run, but does not resume it.
    if config.job.name is JobName.runtime:
        config = replace(config, trainer=replace(config.trainer, resume="none"))
    given = [mask_text(override) for override in composed.overrides]
    config = with_model_folder(config, lambda configs: earlier_of(configs, folder, here, given))
    config = with_meeting(config, folder)
    # This refuses before anything is written there.
    choose_folder(config, folder, here, given)
    _refuse_foreign(folder)
    _write_hydra_folder(folder / ".hydra", given, tree, hydra)
    write_text_atomic(folder / "config.yaml", resolved_yaml(composed))
    with only_shown(folder / "plan.json"):
        write_text_atomic(
            folder / "plan.json", json.dumps(make_plan(replace_out_of_range(composed.config)), indent=2) + "\n"
        )
    if code := code_of(folder, _job_number(hydra), composed.config.job.code):
        facts = [asdict(fact) for fact in code_facts(code, folder)]
        write_text_atomic(folder / "code.json", json.dumps(facts, indent=2) + "\n")
    return int(_job_module(config.job.name).run(config, folder)), config


def _refuse_foreign(folder: Path) -> None:
    """Raises UserError if the folder has somebody's own files of the names that a start writes."""
    if (folder / ".hydra").is_dir():
        theirs = []
    else:
        theirs = [name for name in WRITTEN_FIRST if (folder / name).exists()]
    if theirs:
        raise UserError(
            f"{folder} has a {min(theirs)} that is no run's, and a run would write its own over it. Take another "
            "folder: hydra.run.dir=FOLDER."
        )


def _job_module(name: JobName) -> Any:
    """Returns the module of a job. Trainings have one loop: their algorithm makes the difference."""
    return import_module(f"swe_rl.job.{JobName.train if name in TRAININGS else name}")


def _write_hydra_folder(folder: Path, given: list[str], tree: "DictConfig", hydra: "DictConfig") -> None:
    """Writes the three files that Hydra itself would write, references unresolved."""
    from omegaconf import OmegaConf

    folder.mkdir(parents=True, exist_ok=True)
    for name, node in (("config", tree), ("hydra", hydra)):
        values = mask_tree(parse_yaml(OmegaConf.to_yaml(node)))
        write_text_atomic(folder / f"{name}.yaml", render_yaml(values))
    write_text_atomic(folder / "overrides.yaml", render_yaml(given))
