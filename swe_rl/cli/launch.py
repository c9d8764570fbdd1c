"""This module goes from the command line to a job: compose, check, then start; nothing is started that has an error.

Invariants:
- Jobs without a folder run on the composition itself; Hydra makes folders for the others only, after the rules passed.
- With several jobs, each is checked before the first starts. Repeats of arms follow one another in blocks, every other
  block backwards (ABBA), so that a machine that drifts moves all arms alike.
- SLURM gets batch scripts of ours; other launchers are Hydra's.
- No error of Hydra's reaches the user as a traceback.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from swe_rl.check.rules.hardware import AUTO, WITHOUT_GPUS, on_smallest_machine
from swe_rl.cli.dispatch import (
    FOLDERLESS,
    checks_pass,
    guard_all,
    may_start,
    run_all_folderless,
    run_folderless,
)
from swe_rl.cli.hydra_main import no_task, parse_arguments, run_jobs, through_hydra
from swe_rl.cli.trials import BASIC, SWEEPERS, refuse_unfit, run_trials
from swe_rl.config import yaml_text
from swe_rl.config.choices import TRAININGS, JobName
from swe_rl.config.compose import Composed, compose, compose_all, compose_fixed, expand_sweep
from swe_rl.config.environment import read_dotenv
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import LAUNCHERS
from swe_rl.config.launcher import is_slurm, quote_value, starts_processes
from swe_rl.config.secrets import hide_secrets, mask_text, mask_tree
from swe_rl.facts.sizes import gpus_needed
from swe_rl.files.redactor import MASK
from swe_rl.logger.failure import INTERRUPTED, report_failure
from swe_rl.submission.freeze import FOLDER as FROZEN
from swe_rl.submission.freeze import Frozen, freeze_jobs, use_frozen_code

_HARDWARE = "hardware"
# A dry run that names no launcher takes this one.
_SLURM = "submitit_slurm"
_NO_DETACH = (
    "job.detach=true leaves jobs to SLURM, and hydra/launcher={} has none to leave them to. Add --multirun "
    "hydra/launcher=submitit_slurm, or leave job.detach out."
)
# `--multirun` compares these at its end.
COMPARED = TRAININGS | {JobName.rollout, JobName.eval}


def run_command(arguments: Sequence[str]) -> int:
    """Runs what `arguments` ask for and returns the exit status; every error was reported by then."""
    try:
        flags = parse_arguments(arguments)
        read_dotenv(Path.cwd())
        overrides = hide_secrets(flags.overrides)
        config_dir = Path(flags.config_dir) if flags.config_dir else None
        if flags.cfg or flags.info or flags.shell_completion or flags.hydra_help:
            checked = [] if flags.shell_completion else overrides
            return _show_config(flags, lambda: through_hydra(no_task, arguments, overrides, config_dir, checked))
        if flags.config_name or flags.config_path or flags.experimental_rerun:
            raise ConfigError("--config-name, --config-path and --experimental-rerun are not supported; see --help.")
        if not flags.multirun:
            composed = on_smallest_machine(compose(overrides, config_dir))
            if not composed.multirun and not _only_written(composed):
                return _run_single(composed, arguments, config_dir)
        return _run_several(flags, overrides, config_dir)
    except (KeyboardInterrupt, Exception) as error:
        return report_failure(error)


def _run_single(composed: Composed, arguments: Sequence[str], config_dir: Path | None) -> int:
    if composed.launcher != "basic":
        raise ConfigError(f"hydra/launcher={composed.launcher} starts jobs only together with --multirun; add it.")
    if (sweeper := composed.choices.get(SWEEPERS, BASIC)) != BASIC:
        raise ConfigError(f"{SWEEPERS}={sweeper} chooses jobs only together with --multirun; add it.")
    if composed.config.job.detach and _checks_a_start(composed):
        raise ConfigError(_NO_DETACH.format(composed.launcher))
    if composed.config.job.name in FOLDERLESS:
        return run_folderless(composed)
    if not may_start(composed):
        return 2
    return run_jobs(arguments, list(composed.overrides), config_dir)


def _run_several(flags: argparse.Namespace, overrides: list[str], config_dir: Path | None) -> int:
    jobs = _compose_jobs(overrides, config_dir)
    if not jobs:
        return _run_optimizer(flags, overrides, config_dir)
    if _only_written(jobs[0]) and not is_slurm(jobs[0].launcher_settings):
        overrides = [*(text for text in overrides if not text.startswith(f"{LAUNCHERS}=")), f"{LAUNCHERS}={_SLURM}"]
        jobs = _compose_jobs(overrides, config_dir)
    if _checks_a_start(jobs[0]):
        if is_slurm(jobs[0].launcher_settings):
            jobs = _without_this_machine(jobs, config_dir)
        elif jobs[0].config.job.detach:
            raise ConfigError(_NO_DETACH.format(jobs[0].launcher))
    if all(job.config.job.name in FOLDERLESS for job in jobs):
        jobs = [on_smallest_machine(job) for job in jobs]
        return max(run_all_folderless(jobs), 0 if checks_pass(jobs) else 2)
    if any(job.config.job.name in FOLDERLESS for job in jobs):
        names = ", ".join(sorted(JobName(name) for name in FOLDERLESS))
        raise ConfigError(f"Jobs without a run folder ({names}) cannot share a --multirun with others.")
    if not guard_all(jobs):
        return 2
    if is_slurm(jobs[0].launcher_settings):
        return _submit_jobs(jobs, overrides, config_dir)
    return _run_frozen(flags, jobs, overrides, config_dir)


def _run_optimizer(flags: argparse.Namespace, overrides: list[str], config_dir: Path | None) -> int:
    """Runs a sweep whose sweeper decides as it goes."""
    fixed = compose_fixed(overrides, config_dir)
    refuse_unfit(fixed)
    # The job is check or plan, of what all trials share.
    if fixed.config.job.name in FOLDERLESS:
        return run_folderless(on_smallest_machine(fixed))
    # Jobs that start elsewhere mean the same folder.
    folder = Path(fixed.sweep_dir).absolute()
    given, frozen = _freeze_jobs(fixed, [], folder, overrides, config_dir)
    multirun = ["--multirun"] if flags.multirun else []

    def run(task: Callable[[Any], float | None]) -> None:
        through_hydra(task, multirun, given, frozen.config_dir, conf=frozen.conf)

    status = run_trials(fixed, folder, run)
    _print_comparison([fixed], folder)
    return status


def _checks_a_start(composed: Composed) -> bool:
    """Tells whether the job starts a run, or is a check whether that can start: both are refused by the same."""
    job = composed.config.job
    return (job.of if job.name is JobName.check else job.name) not in FOLDERLESS


def _without_this_machine(jobs: list[Composed], config_dir: Path | None) -> list[Composed]:
    """Returns the jobs, with other hardware for those that have hardware=auto: it would ask for this machine's
    cores and memory, and SLURM's jobs run elsewhere.

    Jobs without GPUs ask for what the tiny model needs. Raises ConfigError if GPUs are wanted: nobody said which.
    """
    numbers = [number for number, job in enumerate(jobs) if job.choices.get(_HARDWARE) == AUTO]
    wanting = next((jobs[number].config for number in numbers if gpus_needed(jobs[number].config)), None)
    if wanting is not None:
        raise ConfigError(
            f"hardware=auto describes this machine, and SLURM starts the jobs elsewhere: layout="
            f"{wanting.layout.name} needs {gpus_needed(wanting)} GPUs there. Say what the cluster has: "
            "hardware=h100x8, or another option of conf/hardware/, with hardware.partition=NAME."
        )
    elsewhere = [[*jobs[number].overrides, f"{_HARDWARE}={WITHOUT_GPUS}"] for number in numbers]
    replaced = dict(zip(numbers, compose_all(elsewhere, config_dir), strict=True))
    return [replaced.get(number, job) for number, job in enumerate(jobs)]


def _compose_jobs(overrides: list[str], config_dir: Path | None) -> list[Composed]:
    """Returns the jobs in the order in which they start and are numbered; a launcher that starts all at once keeps
    Hydra's."""
    jobs = compose_all(expand_sweep(overrides, config_dir), config_dir)
    blocks = _repeat_blocks(jobs)
    return [job for number, block in enumerate(blocks) for job in (block[::-1] if number % 2 else block)] or jobs


def _repeat_blocks(jobs: Sequence[Composed]) -> list[list[Composed]]:
    """Returns the arms of each repeat, by trainer.seed and job.repeat; empty if there are no repeats of several
    arms."""
    if not jobs or _side_by_side(jobs[0]):
        return []
    blocks: dict[tuple[int, int], list[Composed]] = {}
    for job in jobs:
        blocks.setdefault((job.config.job.repeat, job.config.trainer.seed), []).append(job)
    if 1 < len(blocks) < len(jobs):
        return list(blocks.values())
    return []


def _side_by_side(job: Composed) -> bool:
    return starts_processes(job.launcher_settings) and not is_slurm(job.launcher_settings)


def _only_written(composed: Composed) -> bool:
    """Tells whether only batch scripts are written: a dry run is about them, whatever launcher was chosen."""
    return composed.config.job.dry_run and composed.config.job.name not in FOLDERLESS


def _submit_jobs(jobs: list[Composed], overrides: list[str], config_dir: Path | None) -> int:
    """Submits to SLURM, in batch scripts of our own: Hydra's launcher would wait for pickles that a killed job never
    writes."""
    from swe_rl.submission.submit import submit_sweep

    folder = Path(jobs[0].sweep_dir).absolute()
    frozen = freeze_jobs(folder, jobs, config_dir, code=True)
    status = submit_sweep(folder, jobs, frozen, overrides)
    if status in (0, 1) and not jobs[0].config.job.dry_run and not jobs[0].config.job.detach:
        _print_comparison(jobs, folder)
    return status


def start_submitted(folder: Path, number: int, slurm_id: str) -> int:
    """Runs one job of a submitted sweep, in the process that SLURM started for it. Returns the exit status."""
    from swe_rl.submission.record import read_submission

    try:
        submission = read_submission(folder)
        job = submission.jobs[number]
        if submission.config_dir is None:
            config_dir = None
        else:
            config_dir = folder / submission.config_dir
        more = _of_sweep(folder / job.folder, number, slurm_id)
        return run_jobs([], [*job.overrides, *more], config_dir, folder / FROZEN / "conf")
    except (KeyboardInterrupt, Exception) as error:
        return report_failure(error)


def _run_frozen(flags: argparse.Namespace, jobs: list[Composed], overrides: list[str], config_dir: Path | None) -> int:
    folder = Path(jobs[0].sweep_dir).absolute()
    given, frozen = _freeze_jobs(jobs[0], jobs, folder, overrides, config_dir)
    if _repeat_blocks(jobs):
        status = _run_in_order(jobs, folder, frozen)
    else:
        status = run_jobs(["--multirun"] if flags.multirun else [], given, frozen.config_dir, frozen.conf)
    _print_comparison(jobs, folder)
    return status


def _freeze_jobs(
    first: Composed, jobs: list[Composed], folder: Path, overrides: list[str], config_dir: Path | None
) -> tuple[list[str], Frozen]:
    """Freezes below `folder` what all jobs compose from; jobs in processes of their own run the frozen package, too.

    Returns the overrides with which they write there as well.
    """
    apart = starts_processes(first.launcher_settings)
    frozen = freeze_jobs(folder, jobs, config_dir, code=apart, shared_code=first.config.job.code)
    if apart:
        use_frozen_code(frozen)
        where = f"{f'{len(jobs)} jobs' if jobs else 'trials'} by {first.launcher} in {folder}"
        print(f"{where}: each folder has its run.log and status.json", flush=True)
    given = [override for override in overrides if not override.startswith("hydra.sweep.dir=")]
    return [*given, f"hydra.sweep.dir={quote_value(str(folder))}"], frozen


def _run_in_order(jobs: Sequence[Composed], folder: Path, frozen: Frozen) -> int:
    """Runs one job after the other in this process, as Hydra's basic launcher does in an order of its own."""
    from swe_rl.check.sweep import job_folders

    worst = 0
    for number, (job, name) in enumerate(zip(jobs, job_folders(jobs), strict=True)):
        more = _of_sweep(folder / name, number, str(number))
        status = run_jobs([], [*job.overrides, *more], frozen.config_dir, frozen.conf)
        if status == INTERRUPTED:
            return status
        worst = max(worst, status)
    return worst


def _of_sweep(folder: Path, number: int, name: str) -> list[str]:
    """Returns overrides with which a job runs alone, in its folder and under its number."""
    here = {"mode": "RUN", "run.dir": quote_value(str(folder)), "job.num": number, "job.id": quote_value(name)}
    return [f"hydra.{key}={value}" for key, value in here.items()]


def _print_comparison(jobs: Sequence[Composed], folder: Path) -> None:
    """Prints the arms of a sweep side by side, at its end."""
    if not all(job.config.job.name in COMPARED for job in jobs):
        return
    from swe_rl.job.compare import after_multirun

    text = after_multirun(folder)
    if text is not None:
        print(text, flush=True)


def _show_config(flags: argparse.Namespace, run_hydra: Callable[[], None]) -> int:
    """Shows Hydra's own looks (`--cfg`, `--info`, completion), with `***` for a secret; returns the exit status."""
    for name in [name for name in os.environ if name.startswith("SWE_RL_SECRET_")]:
        os.environ[name] = MASK
    printed = StringIO()
    status = 0
    try:
        with redirect_stdout(printed):
            run_hydra()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            status = ended.code
        else:
            status = int(ended.code is not None)
    text = printed.getvalue()
    sys.stdout.write(_masked_yaml(text, flags.package) if flags.cfg else mask_text(text))
    sys.stdout.flush()
    return status


def _masked_yaml(text: str, package: str | None) -> str:
    """Masks secrets in YAML. The text is unchanged, comments included, if there is nothing to mask."""
    values = yaml_text.parse_yaml(text)
    masked = mask_tree(values, "" if package in (None, "_global_") else str(package))
    if masked == values:
        return mask_text(text)
    return yaml_text.render_yaml(masked)
