"""The batch script of a job, from the launcher's settings.

Invariants:
- Pure: settings in, text out. What is submitted is this text and nothing else; a dry run shows the same.
- Launcher keys that are no option of ours are options of sbatch under their own name, so that none is lost.
- No secret is in a script: jobs inherit the environment of whoever submits.
- One process a job, on its first node, with all the CPUs that the job has there; what needs more starts it itself.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import launchers_dir

# Launcher key: sbatch option, where the two differ by more than dashes.
_OPTIONS = {"name": "job-name", "timeout_min": "time", "tasks_per_node": "ntasks-per-node"}
# Launcher keys that are no option of sbatch; see `batch_script` for those that it heeds.
_OWN = frozenset(
    {
        "_target_",
        "submitit_folder",
        "mem_gb",
        "setup",
        "signal_delay_s",
        "array_parallelism",
        "stderr_to_stdout",
        "additional_parameters",
        "srun_args",
        "use_srun",
        "python",
        "max_num_timeout",  # the run keeps its own budget: hardware.max_requeues
    }
)
_WARNED_S = 120
LAUNCHERS = "SWE_RL_LAUNCHERS"


@dataclass(frozen=True, slots=True)
class Array:
    """`size` jobs under one id, at most `parallel` at once."""

    size: int
    parallel: int

    @property
    def at_once(self) -> int:
        return max(1, min(self.size, self.parallel))

    @property
    def option(self) -> str:
        return f"0-{self.size - 1}%{self.at_once}"


def batch_script(
    settings: Mapping[str, Any],
    command: Sequence[str],
    *,
    logs: Path,
    chdir: Path,
    exports: Mapping[str, str],
    array: Array | None = None,
) -> str:
    """The text of the script; `command` may name variables of the job as `$NAME`. Raises ConfigError."""
    options = {
        "chdir": chdir,
        "signal": f"USR2@{settings.get('signal_delay_s') or _WARNED_S}",
        **_log_options(settings, logs, array),
        **(settings.get("additional_parameters") or {}),
    }
    lines = option_lines(settings, options)
    setup = setup_lines(settings)
    exported = [f"export {name}={_expanded(value)}" for name, value in exports.items()]
    return "\n".join(["#!/bin/bash", *lines, "", *setup, *exported, _start(settings, command), ""])


def setup_lines(settings: Mapping[str, Any]) -> list[str]:
    """The settings' own, which may name a file of launchers/ as "$SWE_RL_LAUNCHERS/FILE"."""
    lines = [str(line) for line in settings.get("setup") or ()]
    if any(f"${LAUNCHERS}" in line for line in lines):
        lines.insert(0, f"export {LAUNCHERS}={shlex.quote(str(launchers_dir()))}")
    return lines


def option_lines(settings: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """`#SBATCH` lines of any job of ours; options of `more` win over the settings'. Raises ConfigError."""
    always = {"open-mode": "append", "requeue": True}  # a job that is queued again goes on in its log
    options = {**_options(settings), **always, **more}
    return [_line(key, value) for key, value in sorted(options.items()) if value not in (None, False)]


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in settings.items():
        if key not in _OWN and "${" in str(value):
            raise ConfigError(f"hydra.launcher.{key}={value}: references to other keys are not resolved for SLURM.")
    found = {
        _OPTIONS.get(key, key.replace("_", "-")): value
        for key, value in settings.items()
        if key not in _OWN and value is not None
    }
    if settings.get("gpus_per_task") or "gpu" in str(settings.get("gres") or ""):
        found.pop("gpus-per-node", None)  # they would be counted twice
    if settings.get("mem_gb") and not (settings.get("mem_per_gpu") or settings.get("mem_per_cpu")):
        found["mem"] = f"{settings['mem_gb']}G"
    return found


def _log_options(settings: Mapping[str, Any], logs: Path, array: Array | None) -> dict[str, Any]:
    """Named as SLURM's own are, one pair a job of an array."""
    stem = f"{str(logs).replace('%', '%%')}/slurm-{'%A_%a' if array else '%j'}"
    named: dict[str, Any] = {"output": f"{stem}.out"}
    if not settings.get("stderr_to_stdout"):
        named["error"] = f"{stem}.err"
    if array is not None:
        named["array"] = array.option
    return named


def _line(key: str, value: Any) -> str:
    return f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={shlex.quote(str(value))}"


def _start(settings: Mapping[str, Any], command: Sequence[str]) -> str:
    """The shell becomes srun, which hands signals on.

    It is told the CPUs, as it does not ask sbatch for them, and to hand on the script's environment, which it does not
    where sbatch was told to leave out the user's.
    """
    if settings.get("use_srun") is False:
        return f"exec {' '.join(map(_expanded, command))}"
    cpus = settings.get("cpus_per_task")
    given = [str(argument) for argument in settings.get("srun_args") or ()]
    words = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--export=ALL",
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        *map(shlex.quote, given),
    ]
    return f"exec {' '.join(words)} {' '.join(map(_expanded, command))}"


def _expanded(word: str) -> str:
    """`$NAME`, `${NAME:-0}` as they are, anything else quoted where it has to be."""
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)
