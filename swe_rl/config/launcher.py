"""What a launcher is told: one source of truth, `hardware`, for every key that a scheduler needs.

Invariants:
- Pure: settings in, overrides out; nothing is submitted here.
- A setting of the user's own stays; where it contradicts `hardware`, a rule names both.
- Environment variables are not among the settings: a batch script is a file, and some of them are secrets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.config.schema import Config

SLURM = ".SlurmLauncher"
LOCAL = ".LocalLauncher"
_PREFIX = "hydra.launcher."


def is_slurm(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("_target_", "")).endswith(SLURM)


def starts_processes(settings: Mapping[str, Any]) -> bool:
    """True for launchers whose jobs run in processes of their own, side by side and later."""
    return not str(settings.get("_target_", "")).endswith(".BasicLauncher")


def slurm_settings(config: Config) -> dict[str, Any]:
    """Launcher key to value, as `hardware` has them; keys that it leaves open are left out."""
    hardware = config.hardware
    wanted: dict[str, Any] = {
        "name": config.name,
        "partition": hardware.partition,
        "account": hardware.account,
        "qos": hardware.qos,
        "exclude": hardware.exclude,
        "constraint": hardware.constraint,
        "timeout_min": hardware.time_limit_min,
        "nodes": hardware.nodes,
        "tasks_per_node": 1,  # whatever needs more processes starts them itself
        "gpus_per_node": hardware.gpus_per_node or None,
        "cpus_per_task": hardware.cpus_per_node,
        "mem_gb": int(hardware.memory_gb),
        "setup": [f"module load {name}" for name in hardware.modules] or None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def slurm_overrides(config: Config, given: Sequence[str]) -> list[str]:
    """Overrides of `hydra.launcher` that the command line does not have already."""
    own = {override.lstrip("+").partition("=")[0].removeprefix(_PREFIX) for override in given}
    return [f"{_PREFIX}{key}={quoted(value)}" for key, value in slurm_settings(config).items() if key not in own]


def quoted(value: Any) -> str:
    """As Hydra's grammar wants it."""
    if isinstance(value, list):
        return f"[{','.join(quoted(item) for item in value)}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)
