"""This module derives the settings of a launcher from `hardware`, the one source of truth for every key that a
scheduler needs.

Invariants:
- Settings go in and overrides come out; nothing is submitted here.
- A setting of the user's own stays; where it contradicts `hardware`, a rule names both.
- Environment variables are not among the settings: a batch script is a file, and some of them are secrets.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.config.choices import JobName
from swe_rl.config.keys import nearest_words
from swe_rl.config.schema import Config

SLURM = ".SlurmLauncher"
_PREFIX = "hydra.launcher."
# Hydra reads a backslash as itself, except in front of a quote.
_BEFORE_QUOTE = re.compile(r"(\\*)('|\Z)")
_ESCAPED_QUOTE = "\\'"
# Neither Hydra nor a shell reads such a path as anything else.
_PLAIN = re.compile(r"/[\w./@+-]*")
# Later launchers for SLURM have these keys, and our batch scripts heed them.
_ADDED = frozenset({"srun_args", "use_srun"})


def settings_of(target: str | None) -> frozenset[str]:
    """Returns the keys of the launcher with this `_target_`, from its dataclass, or of all launchers for None. A
    launcher that declares none has no keys."""
    from hydra.core.config_store import ConfigStore

    nodes = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {}).values()
    keys = [node.node for node in nodes if target is None or node.node.get("_target_") == target]
    return frozenset(str(key) for node in keys for key in node)


def misspelled_keys(settings: Mapping[str, Any]) -> list[str]:
    """Returns keys that the launcher would not take: `+hydra.launcher.acount=...` composes all the same."""
    known = settings_of(str(settings.get("_target_")))
    if is_slurm(settings):
        added = _ADDED
    else:
        added = frozenset()
    return [key for key in settings if known and key not in known | added and not key.startswith("_")]


def no_such_setting(key: str) -> str:
    near = [f"{_PREFIX}{name}" for name in nearest_words(key, settings_of(None), 1)]
    elsewhere = "no launcher has it"
    if key in settings_of(None):
        elsewhere = "another hydra/launcher has it"
    hint = ""
    if near and key not in settings_of(None):
        hint = f" Did you mean {' or '.join(near)}?"
    return (
        f"Unknown key '{_PREFIX}{key}': {elsewhere}.{hint} What SLURM needs is in hardware, as in hardware.account; "
        f"flags of sbatch that have no key go into {_PREFIX}additional_parameters."
    )


def is_slurm(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("_target_", "")).endswith(SLURM)


def starts_processes(settings: Mapping[str, Any]) -> bool:
    """Tells whether the launcher's jobs run in processes of their own, side by side and later."""
    return not str(settings.get("_target_", "")).endswith(".BasicLauncher")


def slurm_settings(config: Config) -> dict[str, Any]:
    """Maps launcher keys to values, as `hardware` has them; keys that it leaves open are left out.

    The settings of a sandbox server are those of `runtime`.
    """
    if config.job.name is JobName.runtime:
        return server_settings(config)
    hardware = config.hardware
    wanted: dict[str, Any] = {
        "name": config.name,
        "partition": hardware.partition,
        "account": hardware.account,
        "qos": hardware.qos,
        "exclude": hardware.exclude,
        "constraint": hardware.constraint,
        "gres": hardware.gres,
        "timeout_min": hardware.time_limit_min,
        "nodes": hardware.nodes,
        # A job that needs more processes starts them itself.
        "tasks_per_node": 1,
        "gpus_per_node": (hardware.gpus_per_node or None) if hardware.gres is None else None,
        "cpus_per_task": hardware.cpus_per_node,
        "mem_gb": int(hardware.memory_gb),
        "max_num_timeout": hardware.max_requeues,
        "setup": _setup_lines(config) or None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def server_settings(config: Config) -> dict[str, Any]:
    """Maps launcher keys to values for the job of one sandbox server, beside a run's or alone."""
    runtime = config.runtime
    hardware = config.hardware
    wanted: dict[str, Any] = {
        "name": config.name,
        "partition": runtime.partition or hardware.partition,
        "account": hardware.account,
        "qos": runtime.qos,
        "timeout_min": runtime.time_limit_min or hardware.time_limit_min,
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": runtime.cpus_per_node,
        "mem_gb": max(1, int(runtime.memory_gb)),
        "max_num_timeout": hardware.max_requeues,
        "setup": [*_setup_lines(config), *runtime.setup] or None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _setup_lines(config: Config) -> list[str]:
    return [*(f"module load {name}" for name in config.hardware.modules), *config.hardware.setup]


def merge_slurm_settings(config: Config, preset: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Returns all that SLURM is told: the launcher's `preset`, over it `hardware`, over both the command line
    (`given`).

    Commands of `setup` add up, those of `hardware` first.
    """
    keys = [override.lstrip("+").partition("=")[0] for override in given]
    overridden = {key.removeprefix(_PREFIX) for key in keys if key.startswith(_PREFIX)}
    wanted = {key: value for key, value in slurm_settings(config).items() if key not in overridden}
    if "setup" in wanted:
        wanted["setup"] = [*wanted["setup"], *(preset.get("setup") or ())]
    return {**preset, **wanted}


def quote_value(value: Any) -> str:
    """Writes a value as Hydra's grammar wants it."""
    if isinstance(value, list):
        return f"[{','.join(quote_value(item) for item in value)}]"
    if isinstance(value, str):
        return f"'{_BEFORE_QUOTE.sub(_escape_quote, value)}'"
    return str(value)


def _escape_quote(match: "re.Match[str]") -> str:
    backslashes, quote = match.groups()
    return f"{backslashes * 2}{quote and _ESCAPED_QUOTE}"


def paste_override(key: str, value: object) -> str:
    """Returns `key=value` for a command that is printed, quoted for Hydra's grammar and for the shell if they need
    it."""
    text = str(value)
    return shlex.quote(f"{key}={text if _PLAIN.fullmatch(text) else quote_value(text)}")
