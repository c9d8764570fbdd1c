"""The sandbox interface.

Invariants:
- A sandbox belongs to one trajectory (or one grading) and starts from a fresh copy of its workspace.
- `exec` never raises for what the command did (exit status, timeout, output); it raises SandboxError only
  when the sandbox itself is broken. An infrastructure failure never becomes a reward.
- Closing is idempotent, kills the whole process tree and removes the working copy.
- Time that is waited right now does not count either, and never ends the wait for what has it.
- Beyond its limit nothing runs for longer than `_GRAIN_S`, unless it waits.
"""

import asyncio
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from swe_rl.errors import RunError

Waited = Callable[[], float]  # seconds so far that were waited for others; only grows
_GRAIN_S = 0.05


def no_wait() -> float:
    return 0.0


async def ends_within(
    work: "asyncio.Future[Any]",
    limit_s: float,
    waited: Waited = no_wait,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether `work` is done before its own time is over. It is left alone, also on cancellation."""
    began_s, before_s = clock(), waited()
    left_s = limit_s
    while not work.done() and left_s > 0:
        await asyncio.wait({work}, timeout=left_s)
        left_s = limit_s - (clock() - began_s) + (waited() - before_s)
        left_s = max(left_s, _GRAIN_S) if left_s > 0 else 0.0
    return work.done()


# What the output of a command says that the sandbox's own bounds ended: its agent used too much, nothing here broke.
USED_TOO_MUCH = "The command was ended: this sandbox used"

# Of a command that sees the processes of its sandbox alone, whose process numbers are its own.
ALONE = "SWE_RL_ALONE"
# Of a command of the guard (inside/guard.sh): the process that hears its stop and its owner's beats.
LISTENER = "SWE_RL_LISTENER"


class SandboxError(RunError):
    """A sandbox could not be made, or died, or cannot run commands any more."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Programs that belong to a prepared folder: its own Python with its own packages, say."""

    folder: Path  # of this machine; each sandbox has a copy
    seen_as: str  # where commands see it
    variables: tuple[tuple[str, str], ...] = ()  # of every command, over the sandbox's own


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a sandbox starts from: a prepared folder on this machine (copied), or a container image.

    With a `toolchain`, commands of process sandboxes see it in the place of the Python that runs swe_rl, whose packages
    they then do not see. A container shows none: its workspace has to name an `image` that has such programs.
    """

    path: Path | None = None
    image: str | None = None
    workdir: str = "/testbed"
    toolchain: Toolchain | None = None
    places: tuple[str, ...] = ()  # further folders that begin empty, each sandbox's own; an image has its own


@dataclass(frozen=True, slots=True)
class Door:
    """The one thing that a sandbox without network may reach: a session of the gateway."""

    host: str
    port: int
    path: str = field(repr=False)  # of the session's base URL, quoted; secret


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int  # 124 after a timeout, 128 + signal when killed
    output: str  # stdout and stderr as they came, head and tail kept when too long, invalid UTF-8 replaced
    timed_out: bool = False
    truncated_bytes: int = 0
    duration_s: float = 0.0


class Sandbox(Protocol):
    sandbox_id: str
    workdir: str  # as the commands see it
    door_url: str | None  # the model's base URL (/v1) as the commands see it; None without a door

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        """Runs `bash -c command` in `workdir`. `waited`: what of its time does not count for `timeout_s`."""
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """`path` is relative to `workdir`; a path that leaves it, also through a link, is a SandboxError."""
        ...

    async def read_file(self, path: str) -> bytes: ...

    async def close(self) -> None:
        """Raises SandboxError when something of it cannot be removed."""
        ...


class SandboxProvider(Protocol):
    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> Sandbox:
        """`owner` names the trajectory or grading in labels, folder names and messages.

        With a `door`, commands reach that session as `sandbox.door_url`, also where they have no network otherwise.
        """
        ...

    async def close(self) -> None:
        """Closes every sandbox that is still open and removes the provider's scratch folder."""
        ...


async def close_all(sandboxes: Iterable[Sandbox], say: Callable[[str], None]) -> None:
    """At the end of a provider: `say` hears of what cannot be removed, and the end goes on."""
    results = await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
    for result in results:
        if isinstance(result, SandboxError):
            say(str(result))
        elif isinstance(result, BaseException):
            raise result


async def put_files(sandbox: Sandbox, files: Mapping[str, bytes]) -> str:
    """Writes `files` through the working folder into one outside of it; returns that folder. Raises SandboxError."""
    aside = f".swe_rl_{secrets.token_hex(8)}"
    for name, content in files.items():
        await sandbox.write_file(f"{aside}/{name}", content)
    # Not below the working folder: the harness cleans that up with git between its tries.
    move = f'd=$(mktemp -d) && mv {aside}/* "$d" && rmdir {aside} && printf %s "$d"'
    moved = await sandbox.exec(move, timeout_s=60.0)
    if moved.exit_code or not moved.output.startswith("/"):
        raise SandboxError(f"files cannot be put into the sandbox: {moved.output[-500:]}")
    return moved.output


async def run_whole(sandbox: Sandbox, script: str, timeout_s: float) -> ExecResult:
    """`script` of any size, which no command has: as a file that is gone before it runs. Raises SandboxError."""
    folder = shlex.quote(await put_files(sandbox, {"script.sh": script.encode("utf-8", "replace")}))
    command = f'unset script; script=$(cat {folder}/script.sh) && rm -r {folder} || exit; eval "$script"'
    return await sandbox.exec(command, timeout_s=timeout_s)
