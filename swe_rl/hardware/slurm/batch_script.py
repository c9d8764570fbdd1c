"""This module writes the batch script of a job, from the launcher's settings, and those of its companions, the sandbox
servers of a run.

Invariants:
- Settings go in and text comes out. What is submitted is this text and nothing else; a dry run shows the same.
- Launcher keys that are no option of ours are options of sbatch under their own name, so that none is lost.
- No secret is in a script: jobs inherit the environment of whoever submits.
- A job has one process, on its first node, with all the CPUs that the job has there; what needs more starts it itself.
- A companion runs the run's own overrides and frozen code; only what job it is and where it meets the run differ. Its
  script depends on nothing outside of itself: the run submits it again when its server is gone.
- Neither job waits for the other in SLURM: a server never ends well, so `afterok` would never start the run.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.config.choices import JobName, RuntimeKind
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import launchers_dir
from swe_rl.config.launcher import quote_value, server_settings
from swe_rl.config.schema import Config
from swe_rl.hardware.rendezvous import Meeting

# Maps launcher keys to sbatch options if they differ by more than dashes.
_OPTIONS = {"name": "job-name", "timeout_min": "time", "tasks_per_node": "ntasks-per-node"}
# These launcher keys are no options of sbatch; see `batch_script` for those that it heeds.
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
        "max_num_timeout",  # The run keeps its own budget: hardware.max_requeues.
    }
)
# SLURM warns a job so many seconds before its end. The run needs them for its last checkpoint.
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
    launchers: Path | None = None,
) -> str:
    """Returns the text of the script; `command` may name variables of the job as `$NAME`. `launchers` is a copy of
    launchers/, if there is one. Raises ConfigError."""
    # SLURM warns only steps, and without srun the job is none.
    to_whom = "B:"
    if _uses_srun(settings):
        to_whom = ""
    options = {
        "chdir": chdir,
        "signal": f"{to_whom}USR2@{settings.get('signal_delay_s') or _WARNED_S}",
        **_log_options(settings, logs, array),
        **_hidden_options(chdir, logs),
        **(settings.get("additional_parameters") or {}),
    }
    lines = option_lines(settings, options)
    setup = setup_lines(settings, launchers)
    exported = [f"export {name}={_quote_word(value)}" for name, value in exports.items()]
    numbers = "${SLURM_JOB_ID}"
    if array:
        numbers = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    log = f"{shlex.quote(str(logs / 'slurm-'))}{numbers}"
    if settings.get("stderr_to_stdout"):
        errors = f"{log}.out"
    else:
        errors = f"{log}.err"
    moved = _redirect_lines(chdir, logs, f"{log}.out", errors)
    return "\n".join(["#!/bin/bash", *lines, "", *moved, *setup, *exported, _start_line(settings, command), ""])


def _hidden_options(chdir: Path, logs: Path) -> dict[str, Any]:
    """Returns options in place of paths that SLURM cannot take: it reads a backslash as a mark, however it is written.
    The script then goes there by itself (`_redirect_lines`)."""
    if "\\" in f"{chdir}{logs}":
        return {"chdir": "/", "output": "/dev/null", "error": None}
    return {}


def _redirect_lines(chdir: Path, logs: Path, output: str, errors: str) -> list[str]:
    """Returns the lines by which a script goes to hidden paths. `output` and `errors` are as a shell reads them."""
    there = [f"exec >> {output} 2>> {errors}", f"cd {shlex.quote(str(chdir))} || exit"]
    if _hidden_options(chdir, logs):
        return there
    return []


def setup_lines(settings: Mapping[str, Any], launchers: Path | None = None) -> list[str]:
    """Returns the settings' own lines, which may name a file of launchers/ as "$SWE_RL_LAUNCHERS/FILE". `launchers` is
    a copy of that folder, if there is one."""
    lines = [str(line) for line in settings.get("setup") or ()]
    if any(f"${LAUNCHERS}" in line for line in lines):
        lines.insert(0, f"export {LAUNCHERS}={shlex.quote(str(launchers or launchers_dir()))}")
    return lines


def option_lines(settings: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """Returns `#SBATCH` lines of any job of ours; options of `more` win over the settings'. Raises ConfigError."""
    # A job that is queued again goes on in its log.
    always = {"open-mode": "append", "requeue": True}
    options = {**_sbatch_options(settings), **always, **more}
    return [_option_line(key, value) for key, value in sorted(options.items()) if value not in (None, False)]


def _sbatch_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in settings.items():
        if key not in _OWN and "${" in str(value):
            raise ConfigError(f"hydra.launcher.{key}={value}: references to other keys are not resolved for SLURM.")
    options = {
        _OPTIONS.get(key, key.replace("_", "-")): value
        for key, value in settings.items()
        if key not in _OWN and value is not None
    }
    if settings.get("gpus_per_task") or "gpu" in str(settings.get("gres") or ""):
        # GPUs would be counted twice.
        options.pop("gpus-per-node", None)
    if settings.get("mem_gb") and not (settings.get("mem_per_gpu") or settings.get("mem_per_cpu")):
        options["mem"] = f"{settings['mem_gb']}G"
    return options


def _log_options(settings: Mapping[str, Any], logs: Path, array: Array | None) -> dict[str, Any]:
    """Names the logs as SLURM's own are, one pair a job of an array."""
    stem = f"{str(logs).replace('%', '%%')}/slurm-{'%A_%a' if array else '%j'}"
    named: dict[str, Any] = {"output": f"{stem}.out"}
    if not settings.get("stderr_to_stdout"):
        named["error"] = f"{stem}.err"
    if array is not None:
        named["array"] = array.option
    return named


def _option_line(key: str, value: Any) -> str:
    if value is True:
        return f"#SBATCH --{key}"
    return f"#SBATCH --{key}={shlex.quote(str(value))}"


def _start_line(settings: Mapping[str, Any], command: Sequence[str]) -> str:
    """Returns the line by which the shell becomes srun, which hands signals on.

    srun is told the CPUs, as it does not ask sbatch for them. It is told to hand on the script's environment, which it
    does not if sbatch was told to leave out the user's.
    """
    if not _uses_srun(settings):
        return f"exec {' '.join(map(_quote_word, command))}"
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
    return f"exec {' '.join(words)} {' '.join(map(_quote_word, command))}"


def _uses_srun(settings: Mapping[str, Any]) -> bool:
    return settings.get("use_srun") is not False


def _quote_word(word: str) -> str:
    """Leaves `$NAME` and `${NAME:-0}` as they are, and quotes anything else that has to be quoted."""
    if word.startswith("$"):
        return f'"{word}"'
    return shlex.quote(word)


# A server is warned so many seconds before its time limit, to give its sandboxes back.
_SERVER_WARNED_S = 30
# A signal to the batch shell goes on to the server, and what a server that was killed has left here is removed.
_SCRIPT = """\
{head}
trap 'told=1; [ -z "$server" ] || kill -TERM $server 2> /dev/null' TERM INT
told=0 server=
{serve} &
server=$!
[ $told = 0 ] || kill -TERM $server 2> /dev/null
told=1
while [ $told = 1 ]; do
  told=0
  wait $server
  status=$?
done
if [ $status -ge 128 ]; then
  {tidy}
fi
exit $status
"""
_TIDY = (
    "import sys; from swe_rl.host.scratch import scratch_path; from swe_rl.sandbox.lease import reap_stale; "
    "reap_stale(scratch_path(sys.argv[1] if len(sys.argv) > 1 else None))"
)


@dataclass(frozen=True, slots=True)
class Companion:
    node: int
    # The settings are as the launcher has them.
    settings: Mapping[str, Any]
    # These are the arguments of `python -m swe_rl`.
    arguments: tuple[str, ...]
    meeting: Meeting
    exports: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    chdir: Path = field(default_factory=Path.cwd)
    # This is paths.scratch.
    scratch: str | None = None
    # This is a copy of launchers/.
    launchers: Path | None = None

    @property
    def path(self) -> Path:
        """Returns where the script belongs."""
        return self.meeting.script(self.node)

    @property
    def job_key(self) -> str:
        """Returns the companion's name in `Meeting.note_jobs`."""
        return job_key(self.node)

    @property
    def script(self) -> str:
        log = shlex.quote(str(self._log))
        moved = _redirect_lines(self.chdir, self._log.parent, log, log)
        lines = ["#!/bin/bash", *self._options(), *moved, *setup_lines(self.settings, self.launchers)]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.exports.items()]
        # SLURM's id, so that a server that is started again does not write into the folder of the one before.
        begin = quote_value(f"{self.meeting.folder / f'server_{self.node}'}_").removesuffix("'")
        python = shlex.quote(self.python)
        command = [python, "-m", "swe_rl", *map(shlex.quote, self.arguments)]
        serve = f'{" ".join(command)} "hydra.run.dir={_in_double_quotes(begin)}${{SLURM_JOB_ID}}\'"'
        return _SCRIPT.format(head="\n".join(lines), serve=serve, tidy=f"{python} -c {shlex.quote(_TIDY)}{self._root}")

    @property
    def _root(self) -> str:
        if self.scratch:
            return f" {shlex.quote(self.scratch)}"
        return ""

    def _options(self) -> list[str]:
        log = str(self._log).replace("%", "%%")
        options = {"chdir": self.chdir, "output": log, "signal": f"B:TERM@{_SERVER_WARNED_S}"}
        return option_lines(self.settings, {**options, **_hidden_options(self.chdir, self._log.parent)})

    @property
    def _log(self) -> Path:
        return self.meeting.log(self.node)


def companion_jobs(
    config: Config,
    overrides: Sequence[str],
    meeting: Path,
    *,
    exports: Mapping[str, str] | None = None,
    config_dir: Path | None = None,
    python: str = sys.executable,
    launchers: Path | None = None,
) -> list[Companion]:
    """Returns what has to be submitted beside a job of `config`; nothing if it has sandboxes of its own or of somebody
    else.

    `overrides` are the job's own. `meeting` is `rendezvous.meeting_of(config, folder of the run)`. `exports` are
    environment variables of the scripts (PYTHONPATH of the frozen code), none of them secret.
    `launchers` is a copy of launchers/, if there is one.
    """
    if config.runtime.kind is not RuntimeKind.job or config.job.name is JobName.runtime:
        return []
    return [
        Companion(
            node=node,
            settings={**server_settings(config), "name": f"{config.name}-{job_key(node)}"},
            arguments=(*_config_dir(config_dir), *server_overrides(overrides, meeting, node)),
            meeting=Meeting(meeting),
            exports=exports or {},
            python=python,
            scratch=config.paths.scratch,
            launchers=launchers,
        )
        for node in range(config.runtime.nodes)
    ]


def job_key(node: int) -> str:
    return f"runtime{node}"


def server_overrides(overrides: Sequence[str], meeting: Path, node: int) -> list[str]:
    """Returns the run's overrides, less what makes it a job of a launcher, with what makes it a server."""
    kept = [override for override in overrides if not _is_of_the_job(override)]
    added = ["job=runtime", f"runtime.shared_dir={quote_value(str(meeting))}", f"runtime.node={node}"]
    return [*kept, *added, "hydra/launcher=basic", "hydra.mode=RUN"]


def _is_of_the_job(override: str) -> bool:
    """Tells whether an override belongs to the job. `job.*` does, too: think_s, strict or dry_run of a run mean
    nothing, or the wrong thing, to its server."""
    key = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return key in ("runtime.shared_dir", "runtime.node") or re.split(r"[./]", key)[0] in ("job", "hydra")


def _in_double_quotes(text: str) -> str:
    """Escapes a text for the shell's double quotes."""
    return re.sub(r'(["$`\\])', r"\\\1", text)


def _config_dir(folder: Path | None) -> tuple[str, ...]:
    if folder is not None:
        return ("--config-dir", str(folder))
    return ()
