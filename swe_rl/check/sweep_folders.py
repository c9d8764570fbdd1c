"""Where each job of a sweep writes, known before it starts: `hydra.sweep.subdir`, resolved.

Invariants:
- The same name that Hydra would give; what only a running job knows (its id, the time) is None, and refused for SLURM.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swe_rl.config.compose import Composed, flatten
from swe_rl.config.explain import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NUMBER = "${hydra.job.num}"


def job_folders(jobs: Sequence[Composed]) -> list[str]:
    """Relative to the sweep's folder, one a job. Raises ConfigError."""
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
    """Of one job, or None where only the running job knows."""
    from omegaconf.errors import OmegaConfBaseException

    if job.sweep_subdir == _NUMBER:
        return str(number)
    tree = _tree(
        flatten(job.config), {"hydra.job.num": number, "hydra.job.name": "swe_rl", "hydra.subdir": job.sweep_subdir}
    )
    try:
        return str(tree.hydra.subdir)
    except OmegaConfBaseException:
        return None


def _tree(*parts: dict[str, Any]) -> "DictConfig":
    from omegaconf import OmegaConf

    tree = OmegaConf.create()
    for part in parts:
        for key, value in part.items():
            OmegaConf.update(tree, key, value)
    return tree
