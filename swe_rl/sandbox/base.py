"""This module has what sandboxes of every kind share: how they open and close, and what a command may be and prints.

Invariants:
- Closing is idempotent; whoever is cancelled while a sandbox closes leaves that to go on.
- A command that its sandbox's end broke off says so; one whose caller was cancelled is cancelled.
- A place is taken before a sandbox is made, and given back when that fails or the sandbox is closed.
- The environment of a command is built from nothing, so that no secret of this process can be in it.
- Of an output at most `3 * limit_bytes` are held, however much is fed. Up to `limit_bytes` nothing is lost; beyond it
  the middle is left out and a marker line says how many bytes. Invalid UTF-8 becomes U+FFFD, and a character cut by the
  gap is dropped, not garbled.
"""

import asyncio
import codecs
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.door import Doorway
from swe_rl.sandbox.sandbox import (
    Door,
    ExecResult,
    NoSnapshotsError,
    SandboxError,
    Snapshot,
    Waited,
    Workspace,
    no_wait,
)
from swe_rl.sandbox.working_copy import remove_tree

TIMEOUT_EXIT = 124  # The command `timeout` of coreutils ends with the same status.
MAX_COMMAND_BYTES = 120_000  # Linux takes at most 128 KiB for one argument.
_log = logging.getLogger(__name__)
# An owner's name may have any characters. These are not safe in the name of a folder or container.
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

Result = TypeVar("Result")
Opened = TypeVar("Opened")


def clear_away(path: Path, sandbox_id: str) -> None:
    """Removes what is left of a sandbox on this machine.

    Raises SandboxError where that fails, so that it spoils one attempt and not a run.
    """
    try:
        remove_tree(path)
    except OSError as error:
        raise SandboxError(f"sandbox {sandbox_id}: its folder {path} cannot be removed: {error}") from error


def no_snapshots(refuses: object) -> NoSnapshotsError:
    """Returns the refusal of a sandbox or provider that has no snapshots."""
    return NoSnapshotsError(
        f"{type(refuses).__name__}: sandboxes of this kind have no snapshots and no forks: process, docker, podman and "
        "remote ones on such a server have"
    )


class BaseSandbox(ABC):
    """This is a sandbox of any kind. Its `doorway` is open already, and is closed with the sandbox."""

    def __init__(
        self,
        sandbox_id: str,
        workdir: str,
        config: SandboxConfig,
        *,
        door_url: str | None = None,
        doorway: Doorway | None = None,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.workdir = workdir
        self._config = config
        self._doorway = doorway
        self.door_url = doorway.url if doorway else door_url
        self._running: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Closes the sandbox once. Whoever closes it first does so; others wait for the end of that.

        Raises SandboxError to the first one when something cannot be removed. A caller that is being cancelled does not
        get this error.
        """
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return
        self._closing = asyncio.ensure_future(self._close())
        self._closing.add_done_callback(_take_error)
        try:
            await asyncio.shield(self._closing)
        except SandboxError as error:
            caller = asyncio.current_task()
            if not (caller and caller.cancelling()):
                raise
            # An error in place of the cancellation would let the caller go on.
            _log.warning("%s", error)

    async def snapshot(self) -> Snapshot:
        """Refuses, as most kinds have no snapshots."""
        raise no_snapshots(self)

    async def reset(self, snapshot: Snapshot) -> None:
        """Refuses, as `snapshot` does."""
        raise no_snapshots(self)

    @abstractmethod
    async def _close(self) -> None:
        """Ends all that runs and removes the sandbox; it is called once. Raises SandboxError."""

    @property
    def _max_bytes(self) -> int:
        """Returns the largest size of a file in bytes."""
        return self._config.max_file_mb * 1024**2

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed")

    def _check_not_closed_meanwhile(self) -> None:
        if self._closing is not None:
            raise SandboxError(f"sandbox {self.sandbox_id} was closed while a command ran in it")

    async def _until_closed(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns what `work` returns. Raises SandboxError where `_end_running` ended it."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            # Both ends look alike here: only the caller's own task knows whether it was the caller that was cancelled.
            caller = asyncio.current_task()
            if not (caller and caller.cancelling()):
                self._check_not_closed_meanwhile()
            raise
        finally:
            self._running.discard(task)

    async def _end_running(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _take_error(closing: "asyncio.Task[None]") -> None:
    """Takes the error where the caller was cancelled meanwhile, as asyncio prints a traceback of what nobody takes."""
    if not closing.cancelled():
        closing.exception()


class LocalSandbox(BaseSandbox):
    """The commands of such a sandbox are started by this process, which also reads what they print."""

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        """Runs a command as the protocol says. One that bash cannot be handed at all has bash's own words as output."""
        self._check_open()
        # A model can write half of a surrogate pair, as a JSON escape: no argument and no line can hold that.
        command = command.encode("utf-8", "replace").decode()
        if (refused := refused_result(command)) is not None:
            return refused
        output = HeadTail(max_output_bytes or self._config.max_output_bytes)
        if self._doorway is not None:
            command = self._doorway.prefix() + command
        status, duration_s = await self._run(command, output, timeout_s, env or {}, waited)
        if status is None:
            exit_code = TIMEOUT_EXIT
        else:
            exit_code = status
        return ExecResult(exit_code, output.text(), status is None, output.truncated_bytes, duration_s)

    @abstractmethod
    async def _run(
        self, command: str, output: "HeadTail", timeout_s: float, env: Mapping[str, str], waited: Waited
    ) -> tuple[int | None, float]:
        """Runs a command and feeds what it prints to `output`. Raises SandboxError where the sandbox is broken.

        Returns the exit status, or None after the timeout, and the seconds that the command took.
        """


class BaseProvider(ABC, Generic[Opened]):
    """Such a provider keeps at most `sandbox.concurrency` sandboxes open, and a caller waits for a place.

    Several providers may share their `places`.
    """

    def __init__(self, config: SandboxConfig, places: asyncio.Semaphore | None = None) -> None:
        self._config = config
        self._places = places or asyncio.Semaphore(config.concurrency)
        self._closed = False

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> Opened:
        """Returns a new sandbox, once there is a place for it.

        Raises UserError for a workspace or door that does not work here, and SandboxError when it cannot be made.
        """
        self._check_open()
        await self._prepare(workspace, owner, door)
        return await self._in_a_place(lambda: self._make(workspace, owner, door))

    async def fork(self, snapshot: Snapshot, *, owner: str, door: Door | None = None) -> Opened:
        """Returns a new sandbox with the files of a snapshot, once there is a place for it. Raises SandboxError."""
        self._check_open()
        return await self._in_a_place(lambda: self._make_fork(snapshot, owner, door))

    async def drop(self, snapshot: Snapshot) -> None:
        """Does nothing, as there are no snapshots."""

    async def _in_a_place(self, make: Callable[[], Awaitable[Opened]]) -> Opened:
        await self._places.acquire()
        try:
            self._check_open()
            return await make()
        except BaseException:
            self._places.release()
            raise

    async def _make_fork(self, snapshot: Snapshot, owner: str, door: Door | None) -> Opened:
        """Returns a new sandbox, in a place that is taken already, as `_make` does. Most kinds refuse."""
        raise no_snapshots(self)

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        """Looks at a request before a place is waited for. Raises UserError for what does not work here."""

    @abstractmethod
    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> Opened:
        """Returns a new sandbox, in a place that is taken already. Whoever closes the sandbox gives the place back."""

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox provider is closed")


def image_of(workspace: Workspace, config: SandboxConfig, owner: str, local: bool = False) -> str:
    """Returns the workspace's own image, or else the base image for folders.

    Raises UserError where there is none, or where the image would lack the workspace's programs.
    """
    if not workspace.image and workspace.toolchain is not None:
        or_image = ", or let the environment name an image that has the programs"
        if local:
            or_image = ""
        raise UserError(
            f"{owner}: its commands need the programs of {workspace.toolchain.folder}, which they see only with "
            f"sandbox=process and bubblewrap: use these{or_image}"
        )
    if image := workspace.image or config.image:
        return image
    raise UserError(
        f"{owner}: the folder of an instance is copied into a base image, and none is set: sandbox.image=IMAGE (one "
        "with bash, git and the Python that the tests need)"
    )


def safe_name(owner: str) -> str:
    """Returns the name of an owner as folders and containers may have it."""
    return _UNSAFE.sub("_", owner).strip(".")[:80] or "sandbox"


def refused_result(command: str) -> ExecResult | None:
    """Returns what bash would say to a command that cannot be handed to it at all, or None where it can be."""
    if "\0" in command:
        return ExecResult(126, "bash: the command contains a NUL byte\n", False, 0, 0.0)
    size_bytes = len(command.encode("utf-8", "replace"))
    if size_bytes > MAX_COMMAND_BYTES:
        words = f"bash: the command is too long ({size_bytes} bytes, limit {MAX_COMMAND_BYTES})\n"
        return ExecResult(126, words, False, 0, 0.0)
    return None


class HeadTail:
    """This collects a stream. The first half of the limit is kept from its start, the second half from its end."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 2:
            raise ValueError(f"limit_bytes must be at least 2, not {limit_bytes}")
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total_bytes = 0

    def feed(self, data: bytes) -> None:
        """Adds the next bytes of the stream."""
        self._total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
            return
        self._tail += data
        # The tail is trimmed only now and then, so that feeding takes time in proportion to the data.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def truncated_bytes(self) -> int:
        """Returns how many bytes are left out of the middle."""
        return max(0, self._total_bytes - self._head_bytes - self._tail_bytes)

    def text(self) -> str:
        """Returns what is kept as text, with a marker line in the place of what is left out."""
        if not self.truncated_bytes:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        # An incremental decoder keeps the begun character at a cut end to itself, so that nothing garbled is shown.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        tail = _without_cut_start(bytes(self._tail[-self._tail_bytes :])).decode("utf-8", "replace")
        return f"{head}\n... [{self.truncated_bytes} bytes left out] ...\n{tail}"


def _without_cut_start(data: bytes) -> bytes:
    """Returns the data without leading continuation bytes, which end a character whose start was left out.

    A character has at most three such bytes.
    """
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def clean_environment(search_path: str, home: str, cpus: float) -> dict[str, str]:
    """Returns the variables that every command sees; `home` is also its temporary folder."""
    threads = str(max(1, math.ceil(cpus)))
    return {
        "PATH": search_path,
        "HOME": home,
        "TMPDIR": home,
        "USER": "agent",
        "LOGNAME": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        **_GIT,
    }


# With these variables git reads no configuration of the system or user, and asks nothing. It takes every folder for
# safe, because the owner of the working copy may differ from the command's user.
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}
