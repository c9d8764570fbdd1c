"""Programs that a build runs: their output kept for the message when they fail."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.sandbox.protocol import SandboxError

_SHOWN_CHARS = 800


class BuildError(SandboxError):
    """What a sandbox starts from could not be built; the message has the program's last words."""


def run(
    argv: Sequence[str | Path],
    *,
    what: str,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Standard output. Raises BuildError that begins with `what`."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{what}: `{Path(command[0]).name}` did not end within {timeout_s:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{what}: `{command[0]}` cannot be run: {error.strerror or error}") from error
    if done.returncode:
        words = " ".join((done.stderr.strip() or done.stdout.strip())[-_SHOWN_CHARS:].split())
        raise BuildError(f"{what}: `{' '.join(command)[:200]}` ended with status {done.returncode}: {words}")
    return done.stdout
