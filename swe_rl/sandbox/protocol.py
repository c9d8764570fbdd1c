"""The sandbox interface.

Invariants:
- A sandbox belongs to one trajectory (or one grading) and starts from a fresh copy of its workspace.
- `exec` never raises for what the command did (exit status, timeout, output); it raises SandboxError only
  when the sandbox itself is broken. An infrastructure failure never becomes a reward.
- Closing is idempotent, kills the whole process tree and removes the working copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_rl.errors import RunError


class SandboxError(RunError):
    """A sandbox could not be made, or died, or cannot run commands any more."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a sandbox starts from: a prepared folder on this machine (copied), or a container image."""

    path: Path | None = None
    image: str | None = None
    workdir: str = "/testbed"


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int  # 124 after a timeout, 128 + signal when killed
    output: str  # stdout and stderr as they came, head and tail kept when too long, invalid UTF-8 replaced
    timed_out: bool
    truncated_bytes: int
    duration_s: float


class Sandbox(Protocol):
    sandbox_id: str
    workdir: str  # as the commands see it

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Runs `bash -c command` in `workdir`."""
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """`path` is relative to `workdir`; a path that leaves it, also through a link, is a SandboxError."""
        ...

    async def read_file(self, path: str) -> bytes: ...

    async def close(self) -> None: ...


class SandboxProvider(Protocol):
    async def create(self, workspace: Workspace, *, owner: str) -> Sandbox:
        """`owner` names the trajectory or grading in labels, folder names and messages."""
        ...

    async def close(self) -> None:
        """Closes every sandbox that is still open and removes the provider's scratch folder."""
        ...
