"""This module runs one program of this machine to its end, within a time limit.

Invariants:
- Nothing outlives a question: a program that takes too long is killed with its children.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

# A program that answers at all answers within this time. A check must not wait longer.
COMMAND_S = 4.0
_LOOKS = ("SQUEUE_", "SACCT_", "SINFO_", "SACCTMGR_", "SCONTROL_", "SCANCEL_", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")


class Unanswered(Exception):
    """The machine, or a server, did not answer; the text says why."""


class NoAnswerInTime(Unanswered):
    """A program took too long; it may have done its work all the same."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Holds how a program ended, and what it printed."""

    status: int
    stdout: str
    stderr: str = ""

    @property
    def reason(self) -> str:
        """Returns the first line of what the program complained about, warnings left out."""
        lines = [
            line.strip() for line in f"{self.stderr}\n{self.stdout}".replace("\r", "\n").split("\n") if line.strip()
        ]
        errors = [line for line in lines if "level=warning" not in line and not line.lower().startswith("warning")]
        return (errors or lines or [f"exit status {self.status}"])[0]


def asking_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of SLURM's commands: in English, without what a user has set for his own looks at the
    queue (filters, formats, times), which would change the answers."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_LOOKS)}
    return {**kept, "LC_ALL": "C"}


def run_program(
    command: Sequence[str], timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
) -> Completed | None:
    """Runs a program and returns what it said, or None if there is no such program. `environment` is all of its
    environment; None stands for this process's, in English.

    Raises Unanswered, NoAnswerInTime.
    """
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"} if environment is None else dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise Unanswered(f"`{command[0]}` does not start: {error.strerror}") from error
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise NoAnswerInTime(f"`{' '.join(command[:3])}` gave no answer in {timeout_s:.0f} s") from error
    finally:
        _end_session(process)
    return Completed(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kills what is left of the program's session."""
    if process.poll() is not None and process.stdout is not None and process.stdout.closed:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()
