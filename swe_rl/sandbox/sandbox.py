"""This module is the interface of sandboxes, and has what all their users need.

Invariants:
- A sandbox belongs to one trajectory (or one grading) and starts from a fresh copy of its workspace.
- `exec` never raises for what the command did (exit status, timeout, output); it raises SandboxError only
  when the sandbox itself is broken. An infrastructure failure never becomes a reward.
- Closing is idempotent, kills the whole process tree and removes the working copy.
- Time that a command waits for others does not count for its limit, also while it still waits.
- Beyond its limit nothing runs for longer than `_GRAIN_S`, unless it waits.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from swe_rl.errors import RunError

Waited = Callable[[], float]  # It returns the seconds that were waited for others so far, a number that only grows.
# Waited time moves the end of a limit. The last bit of one is looked at only so often, and not in a busy loop.
_GRAIN_S = 0.05


def no_wait() -> float:
    """Returns the waited time of work that never waits for others."""
    return 0.0


async def ends_within(
    work: "asyncio.Future[Any]",
    limit_s: float,
    waited: Waited = no_wait,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Tells whether `work` is done before its own time is over. The work is left alone, also on cancellation."""
    began_s = clock()
    before_s = waited()
    left_s = limit_s
    while not work.done() and left_s > 0:
        await asyncio.wait({work}, timeout=left_s)
        left_s = limit_s - (clock() - began_s) + (waited() - before_s)
        if left_s > 0:
            left_s = max(left_s, _GRAIN_S)
        else:
            left_s = 0.0
    return work.done()


# The output of a command has these words where the sandbox's bounds ended it: its agent used too much, nothing broke.
USED_TOO_MUCH = "The command was ended: this sandbox used"


class SandboxError(RunError):
    """A sandbox could not be made, or died, or cannot run commands any more."""


class OutsideError(SandboxError):
    """The sandbox broke from outside: what runs it cannot be reached, or somebody ended it.

    Nothing that runs inside of a sandbox can bring that about.
    """


class NoSnapshotsError(SandboxError):
    """Sandboxes of this kind cannot be snapshot, reset or forked."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """This stands for all files of a sandbox at one time, which its provider holds until it is dropped.

    A snapshot outlives its sandbox, but not the provider. Nothing that runs is in it: where a command returns, nothing
    runs any more.
    """

    snapshot_id: str


@dataclass(frozen=True, slots=True)
class Toolchain:
    """These programs belong to a prepared folder; they are its own Python with its own packages, for example."""

    folder: Path  # The programs are in this folder of this machine, and each sandbox has a copy.
    seen_as: str  # Commands see the folder under this path.
    variables: tuple[tuple[str, str], ...] = ()  # Every command has these variables over the sandbox's own.


@dataclass(frozen=True, slots=True)
class Workspace:
    """A sandbox starts from this: a prepared folder on this machine, which is copied, or a container image.

    With a `toolchain`, commands of process sandboxes see it in the place of the Python that runs swe_rl, whose packages
    they then do not see. A container shows none: its workspace has to name an `image` that has such programs.
    """

    path: Path | None = None  # The prepared folder; None where an image is in its place.
    image: str | None = None
    workdir: str = "/testbed"  # The working folder inside of the sandbox.
    toolchain: Toolchain | None = None
    # These further folders begin empty, and each sandbox has its own. An image brings them along.
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Door:
    """This is the one thing that a sandbox without network may reach: a session of the gateway."""

    host: str  # The gateway's address.
    port: int  # The gateway's port.
    path: str = field(repr=False)  # This is the quoted path of the session's base URL. It has the session's secret.


@dataclass(frozen=True, slots=True)
class ExecResult:
    """This is the result of one command."""

    exit_code: int  # It is 124 after a timeout, and 128 plus the signal's number where a signal ended the command.
    # These are stdout and stderr as they came. Of a long output head and tail are kept, and invalid UTF-8 is replaced.
    output: str
    timed_out: bool = False  # The time limit ended the command.
    truncated_bytes: int = 0  # So many bytes were left out in the middle of the output.
    duration_s: float = 0.0  # Seconds that the command ran.


class Sandbox(Protocol):
    """This is the isolated place where the commands of one trajectory, or of one grading, run."""

    sandbox_id: str  # Messages and labels call the sandbox so.
    workdir: str  # Commands see the working folder under this path.
    door_url: str | None  # Commands reach the model under this base URL (/v1). It is None without a door.

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        """Runs `bash -c command` in `workdir` and returns its result.

        Time that `waited` counts is not part of `timeout_s`. Raises SandboxError only where the sandbox is broken.
        """
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Writes a file; `path` is relative to `workdir`.

        Raises SandboxError where the path leaves `workdir`, also through a link.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """Returns a file's content. Raises SandboxError as `write_file` does, and where there is no such file."""
        ...

    async def snapshot(self) -> Snapshot:
        """Returns a snapshot of all files that commands could change, once no command runs.

        The sandbox goes on as it is. Raises NoSnapshotsError where sandboxes of its kind have none.
        """
        ...

    async def reset(self, snapshot: Snapshot) -> None:
        """Brings all files back as they were in the snapshot, once no command runs. The sandbox stays the same one.

        Raises SandboxError for a snapshot of another workspace, or one that was dropped.
        """
        ...

    async def close(self) -> None:
        """Ends all that runs and removes the sandbox. Raises SandboxError when something of it cannot be removed."""
        ...


class SandboxProvider(Protocol):
    """This makes the sandboxes of one run."""

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> Sandbox:
        """Returns a new sandbox; `owner` names the trajectory or grading in labels, folder names and messages.

        With a `door`, commands reach that session as `sandbox.door_url`, also where they have no network otherwise.
        """
        ...

    async def fork(self, snapshot: Snapshot, *, owner: str, door: Door | None = None) -> Sandbox:
        """Returns a new sandbox that begins with the files of the snapshot, and is as `create` makes them otherwise.

        What the one writes from then on, no other sees. Raises NoSnapshotsError where there are no snapshots, and
        SandboxError for one that was dropped.
        """
        ...

    async def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot, and removes what only it needs. One that is gone is fine. Its forks stay."""
        ...

    async def close(self) -> None:
        """Closes every sandbox that is still open and removes the provider's scratch folder and all snapshots."""
        ...


async def close_all(sandboxes: Iterable[Sandbox], say: Callable[[str], None]) -> None:
    """Closes all sandboxes of a provider that ends; `say` hears of what cannot be removed, and the end goes on.

    Raises any other error than a SandboxError once all are closed.
    """
    results = await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
    for result in results:
        if isinstance(result, SandboxError):
            say(str(result))
        elif isinstance(result, BaseException):
            raise result


async def put_files(sandbox: Sandbox, files: Mapping[str, bytes]) -> str:
    """Writes `files` through the working folder into a folder outside of it, and returns that folder.

    Raises SandboxError where that is impossible.
    """
    aside = f".swe_rl_{secrets.token_hex(8)}"
    for name, content in files.items():
        await sandbox.write_file(f"{aside}/{name}", content)
    # The files cannot stay below the working folder, because the harness cleans that up with git between its tries.
    move = f'd=$(mktemp -d) && mv {aside}/* "$d" && rmdir {aside} && printf %s "$d"'
    moved = await sandbox.exec(move, timeout_s=60.0)
    if moved.exit_code or not moved.output.startswith("/"):
        raise SandboxError(f"files cannot be put into the sandbox: {moved.output[-500:]}")
    return moved.output


async def run_whole(sandbox: Sandbox, script: str, timeout_s: float, **options: Any) -> ExecResult:
    """Runs a `script` of any size, while a command's size is limited, and returns its result.

    The script comes as a file, which is gone before it runs. `options` are those of `exec`. Raises SandboxError.
    """
    aside = f".swe_rl_{secrets.token_hex(8)}"
    await sandbox.write_file(f"{aside}/script.sh", script.encode("utf-8", "replace"))
    command = f'unset script; script=$(cat {aside}/script.sh) && rm -r {aside} || exit; eval "$script"'
    return await sandbox.exec(command, timeout_s=timeout_s, **options)


async def read_texts(sandbox: Sandbox, paths: Iterable[str]) -> dict[str, str]:
    """Returns the texts of files in a sandbox by path, without those that cannot be read."""
    texts: dict[str, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read_file(path)).decode("utf-8")
        except (SandboxError, UnicodeDecodeError):
            continue
    return texts
