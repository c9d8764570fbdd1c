"""Jobs that are submitted beside a run's job because the run needs them: its sandbox servers.

Invariants:
- Pure: a configuration in, batch scripts out; whoever submits the run writes and submits them.
- A companion runs the run's own overrides and frozen code; only what job it is and where it meets the run differ.
- A script holds no secret and depends on nothing outside of itself: the run submits it again when its server is gone.
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
from swe_rl.config.launcher import quoted, server_settings
from swe_rl.config.schema import Config
from swe_rl.hardware.rendezvous import Meeting
from swe_rl.hardware.slurm.batch_script import option_lines, setup_lines

_WARNED_S = 30  # before the time limit; the server gives its sandboxes back
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
    settings: Mapping[str, Any]  # as the launcher has them
    arguments: tuple[str, ...]  # of `python -m swe_rl`
    meeting: Meeting
    exports: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    chdir: Path = field(default_factory=Path.cwd)
    scratch: str | None = None  # paths.scratch

    @property
    def path(self) -> Path:
        """Where the script belongs."""
        return self.meeting.script(self.node)

    @property
    def job_key(self) -> str:
        """Its name in `Meeting.note_jobs`."""
        return job_key(self.node)

    @property
    def script(self) -> str:
        lines = ["#!/bin/bash", *self._options(), *setup_lines(self.settings)]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.exports.items()]
        # SLURM's id, so that a server that is started again does not write into the folder of the one before.
        folder = _in_double_quotes(f"{self.meeting.folder / f'server_{self.node}'}_") + "${SLURM_JOB_ID}"
        python = shlex.quote(self.python)
        command = [python, "-m", "swe_rl", *map(shlex.quote, self.arguments)]
        serve = f"{' '.join(command)} \"hydra.run.dir='{folder}'\""
        return _SCRIPT.format(head="\n".join(lines), serve=serve, tidy=f"{python} -c {shlex.quote(_TIDY)}{self._root}")

    @property
    def _root(self) -> str:
        return f" {shlex.quote(self.scratch)}" if self.scratch else ""

    def _options(self) -> list[str]:
        log = str(self.meeting.log(self.node)).replace("%", "%%")
        return option_lines(self.settings, {"chdir": self.chdir, "output": log, "signal": f"B:TERM@{_WARNED_S}"})


def companion_jobs(
    config: Config,
    overrides: Sequence[str],
    meeting: Path,
    *,
    exports: Mapping[str, str] | None = None,
    config_dir: Path | None = None,
    python: str = sys.executable,
) -> list[Companion]:
    """What has to be submitted beside a job of `config`; none with sandboxes of its own or of somebody else.

    `overrides`: the job's own. `meeting`: `rendezvous.meeting_of(config, folder of the run)`. `exports`: environment
    variables of the scripts (PYTHONPATH of the frozen code), none of them secret.
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
        )
        for node in range(config.runtime.nodes)
    ]


def job_key(node: int) -> str:
    return f"runtime{node}"


def server_overrides(overrides: Sequence[str], meeting: Path, node: int) -> list[str]:
    """The run's overrides, less what makes it a job of a launcher, with what makes it a server."""
    kept = [override for override in overrides if not _is_of_the_job(override)]
    own = ["job=runtime", f"runtime.shared_dir={quoted(str(meeting))}", f"runtime.node={node}"]
    return [*kept, *own, "hydra/launcher=basic", "hydra.mode=RUN"]


def _is_of_the_job(override: str) -> bool:
    """`job.*` too: think_s, strict or dry_run of a run mean nothing, or the wrong thing, to its server."""
    key = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return key in ("runtime.shared_dir", "runtime.node") or re.split(r"[./]", key)[0] in ("job", "hydra")


def _in_double_quotes(path: str) -> str:
    """For the shell, and within single quotes for Hydra."""
    return re.sub(r'(["$`\\])', r"\\\1", path.replace("'", "\\'"))


def _config_dir(folder: Path | None) -> tuple[str, ...]:
    return ("--config-dir", str(folder)) if folder is not None else ()
