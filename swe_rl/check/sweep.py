"""Rules over all jobs of a `--multirun` check what each job alone cannot know, and where each of them writes.

Invariants:
- The rules see every job before the first is started. A finding names jobs, counted from 0 as their folders are.
- Jobs one after another in this process (the basic launcher) may share what jobs side by side may not.
- A folder has the name that Hydra would give it; what only a running job knows (its id, the time) is None, and refused
  for SLURM.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swe_rl.check.findings import Finding, error, warning
from swe_rl.config.choices import JobName, RuntimeKind
from swe_rl.config.compose import Composed
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.explain import ConfigError
from swe_rl.config.launcher import is_slurm, slurm_settings, starts_processes
from swe_rl.config.parts import asked_config
from swe_rl.config.ranges import replace_out_of_range

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_sweep(jobs: Sequence[Composed]) -> list[Finding]:
    """Returns the findings about the sweep as a whole, errors first."""
    # These are the jobs that a check answers for. Each job's own rules name wrong numbers.
    sound = [replace(job, config=replace_out_of_range(asked_config(job.config))) for job in jobs]
    findings = [finding for rule in RULES for finding in rule(sound)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def one_launcher(jobs: Sequence[Composed]) -> Iterator[Finding]:
    launchers = list(dict.fromkeys(job.launcher for job in jobs))
    if len(launchers) > 1:
        yield error(
            "sweep_launcher",
            "hydra/launcher",
            "jobs of one sweep are started by one launcher; Hydra would take the first for all of them",
            f"one sweep for each: hydra/launcher={launchers[0]}",
            value=",".join(launchers),
        )


def one_hardware(jobs: Sequence[Composed]) -> Iterator[Finding]:
    """Finds jobs that need other SLURM settings than the first one.

    The launcher is told once, so these jobs would get the first job's.
    """
    if not jobs or not is_slurm(jobs[0].launcher_settings):
        return
    wanted = [{key: value for key, value in slurm_settings(job.config).items() if key != "name"} for job in jobs]
    for index, settings in enumerate(wanted):
        if settings != wanted[0]:
            keys = ", ".join(key for key in sorted(settings | wanted[0]) if settings.get(key) != wanted[0].get(key))
            yield error(
                "sweep_hardware",
                "hardware.name",
                f"job {index} wants other SLURM settings than job 0 ({keys}); all jobs of a sweep get the same",
                "one sweep for each hardware",
                value=jobs[index].config.hardware.name,
            )
            return


_SOURCES = {
    "timeout_min": "time_limit_min",
    "cpus_per_task": "cpus_per_node",
    "mem_gb": "memory_gb",
    "max_num_timeout": "max_requeues",
}  # maps a launcher's key to hardware's where that has another name


def launcher_agrees(jobs: Sequence[Composed]) -> Iterator[Finding]:
    if not jobs or not is_slurm(jobs[0].launcher_settings):
        return
    settings = slurm_settings(jobs[0].config)
    given = jobs[0].launcher_settings
    overridden = {override.lstrip("+").partition("=")[0] for override in jobs[0].overrides}
    for key, value in settings.items():
        name = f"hydra.launcher.{key}"
        if key not in ("name", "setup") and name in overridden and given.get(key) != value:
            source = _SOURCES.get(key, key)
            yield error(
                "launcher_differs",
                name,
                f"hardware.{source} says {value}; SLURM and the run would disagree",
                f"hardware.{source}={given.get(key)} instead of {name}",
                value=given.get(key),
            )


def own_folders(jobs: Sequence[Composed]) -> Iterator[Finding]:
    folders: dict[str, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        folders[job_folder(job, number) or str(number)].append(number)  # a running job alone knows its own
    for numbers in folders.values():
        if len(numbers) > 1:
            yield error(
                "sweep_folder",
                "hydra.sweep.subdir",
                f"jobs {list_numbers(numbers)} would write into one folder",
                "hydra.sweep.subdir='${hydra.job.num}', or leave it out",
                value=jobs[0].sweep_subdir,
            )


def own_paths(jobs: Sequence[Composed]) -> Iterator[Finding]:
    for key, value, numbers in _find_shared(jobs):
        yield error(
            "sweep_path",
            key,
            f"jobs {list_numbers(numbers)} would use the same",
            f"leave {key} out, or give each job its own: {key}=A,B",
            value=value,
        )


def _find_shared(jobs: Sequence[Composed]) -> Iterator[tuple[str, Any, list[int]]]:
    side_by_side = bool(jobs) and starts_processes(jobs[0].launcher_settings)
    users: dict[tuple[str, Any], list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        config = job.config
        if config.job.name == JobName.sft:
            users["sft.output", config.sft.output].append(number)
        if config.trainer.resume not in ("none", "auto"):
            users["trainer.resume", config.trainer.resume].append(number)
        if config.runtime.kind == RuntimeKind.job and config.runtime.shared_dir:
            users["runtime.shared_dir", config.runtime.shared_dir].append(number)
        if side_by_side and config.gateway.port > 0:
            users["gateway.port", config.gateway.port].append(number)
    for (key, value), numbers in users.items():
        if len(numbers) > 1:
            yield key, value, numbers


def own_results(jobs: Sequence[Composed]) -> Iterator[Finding]:
    same: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        if job.config.job.name is not JobName.runtime:  # servers compute nothing
            same[config_hash(job.config), job.config.job.name, job.config.job.repeat].append(number)
    for numbers in same.values():
        if len(numbers) > 1:
            yield warning(
                "sweep_same",
                "trainer.seed",
                f"jobs {list_numbers(numbers)} have the same configuration: they compute the same",
                "trainer.seed=0,1,2, or job.repeat=0,1,2 to measure the same again",
                value=jobs[numbers[0]].config.trainer.seed,
            )


def list_numbers(numbers: Sequence[int], most: int = 6) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    if len(numbers) <= most:
        return shown
    return f"{shown}, ... ({len(numbers)} in all)"


RULES = (one_launcher, one_hardware, launcher_agrees, own_folders, own_paths, own_results)


_NUMBER = "${hydra.job.num}"


def job_folders(jobs: Sequence[Composed]) -> list[str]:
    """Returns the folder of each job, relative to the sweep's folder.

    Raises ConfigError where a folder is not known yet, or where two jobs would have the same.
    """
    names = [job_folder(job, number) for number, job in enumerate(jobs)]
    known = [name for name in names if name is not None]
    if len(known) < len(jobs):
        raise ConfigError(
            f"hydra.sweep.subdir={jobs[0].sweep_subdir} is not known before the job runs. With SLURM it may name "
            "${hydra.job.num} and keys of the configuration, such as ${trainer.seed}."
        )
    if len(set(known)) < len(known):
        raise ConfigError(
            f"hydra.sweep.subdir={jobs[0].sweep_subdir} gives two jobs the same folder; add ${{hydra.job.num}} to it."
        )
    return known


def job_folder(job: Composed, number: int) -> str | None:
    """Returns the folder of one job, or None where only the running job knows it."""
    from omegaconf.errors import OmegaConfBaseException

    if job.sweep_subdir == _NUMBER:
        return str(number)
    tree = _make_tree(
        flatten_config(job.config),
        {"hydra.job.num": number, "hydra.job.name": "swe_rl", "hydra.subdir": job.sweep_subdir},
    )
    try:
        return str(tree.hydra.subdir)
    except OmegaConfBaseException:
        return None


def _make_tree(*parts: dict[str, Any]) -> "DictConfig":
    from omegaconf import OmegaConf

    tree = OmegaConf.create()
    for part in parts:
        for key, value in part.items():
            OmegaConf.update(tree, key, value)
    return tree
