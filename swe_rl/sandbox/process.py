"""Sandboxes as local processes: a copied folder, and commands isolated by bubblewrap where that works.

Invariants:
- Each sandbox has a folder of its own below the provider's, which is removed on close, on `close` of the provider and
  at the end of this process; a lease lets a later run remove what a killed one left.
- At most `sandbox.concurrency` commands run at a time over all sandboxes; waiting is not in a command's timeout.
- Nothing that a command started outlives it.
"""

import asyncio
import atexit
import contextlib
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.command import CommandSpec, run_command
from swe_rl.sandbox.confined_path import read_confined, write_confined
from swe_rl.sandbox.isolation import choose_launcher
from swe_rl.sandbox.launcher import Launcher, SandboxFolder
from swe_rl.sandbox.lease import reap_stale, write_lease
from swe_rl.sandbox.output import HeadTail
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.protocol import ExecResult, SandboxError, Workspace
from swe_rl.sandbox.working_copy import copy_tree, remove_tree

_TIMEOUT_EXIT = 124  # as `timeout` of coreutils
_MAX_COMMAND_BYTES = 120_000  # Linux: 128 KiB for one argument


class ProcessSandbox:
    """One working copy; see the protocol. Made by ProcessProvider."""

    def __init__(
        self,
        folder: SandboxFolder,
        launcher: Launcher,
        config: SandboxConfig,
        places: asyncio.Semaphore,
        forget: Callable[["ProcessSandbox"], None],
    ) -> None:
        self.sandbox_id = folder.root.name
        self.workdir = folder.workdir
        self._folder = folder
        self._launcher = launcher
        self._config = config
        self._places = places
        self._forget = forget
        self._running: set[asyncio.Task[ExecResult]] = set()
        self._counter = itertools.count()
        self._closed = False

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        self._check_open()
        command = command.encode("utf-8", "replace").decode()
        refused = _refusal(command)
        if refused is not None:
            return refused
        output = HeadTail(max_output_bytes or self._config.max_output_bytes)
        task = asyncio.ensure_future(self._run(command, timeout_s, env or {}, output))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and not _is_cancelled_itself():
                raise SandboxError(f"sandbox {self.sandbox_id} was closed while a command ran in it") from None
            raise
        finally:
            self._running.discard(task)

    async def _run(self, command: str, timeout_s: float, env: Mapping[str, str], output: HeadTail) -> ExecResult:
        async with self._places:
            self._check_open()
            started_s = time.monotonic()
            try:
                status = await self._launch(command, timeout_s, env, output)
            except OSError as error:
                raise SandboxError(f"sandbox {self.sandbox_id} cannot start a command: {error}") from error
            duration_s = timeout_s if status is None else time.monotonic() - started_s
        exit_code = _TIMEOUT_EXIT if status is None else status if status >= 0 else 128 - status
        return ExecResult(exit_code, output.text(), status is None, output.truncated_bytes, duration_s)

    async def _launch(self, command: str, timeout_s: float, env: Mapping[str, str], output: HeadTail) -> int | None:
        marker = f"{self._folder.root}{os.sep}{next(self._counter)}"
        before = frozenset() if self._launcher.isolated else frozenset(psutil.pids())
        with _status_pipe() as (status_in, status_out):
            launch = self._launcher.launch(
                self._folder, command, timeout_s=timeout_s, status_fd=status_out, marker=marker
            )
            isolated = self._launcher.isolated
            spec = CommandSpec(
                argv=launch.argv,
                env={**launch.env, **env},
                cwd=Path("/") if isolated else self._folder.work,
                timeout_s=timeout_s,
                pass_fds=(status_out,) if isolated else (),
            )
            status = await run_command(spec, output, lambda pid: self._launcher.sweep(pid, marker, before))
            if status is not None and not self._launcher.started_well(_read_now(status_in), status):
                raise SandboxError(f"sandbox {self.sandbox_id} could not be entered: {output.text()[-500:]}")
            return status

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        folder = self._folder
        await asyncio.to_thread(write_confined, folder.work, path, content, workdir=self.workdir, uid=folder.uid)

    async def read_file(self, path: str) -> bytes:
        """Raises MissingFileError (a SandboxError and a FileNotFoundError) when there is no such file."""
        self._check_open()
        max_bytes = self._config.max_file_mb * 1024**2
        return await asyncio.to_thread(
            read_confined, self._folder.work, path, workdir=self.workdir, max_bytes=max_bytes
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._remove)))
        self._forget(self)

    def _remove(self) -> None:
        if not self._launcher.isolated:
            kill_marked(f"{self._folder.root}{os.sep}")
        remove_tree(self._folder.root)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed")


class ProcessProvider:
    """Makes ProcessSandboxes below `scratch`; see the protocol.

    Raises UserError when the isolation that `config` asks for does not work here. `warn` is called at most once, when
    isolation=auto has to do without.
    """

    def __init__(self, config: SandboxConfig, scratch: Path, *, warn: Callable[[str], None]) -> None:
        self._config = config
        self._pid = os.getpid()
        scratch = scratch.absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        reap_stale(scratch)
        self._folder = scratch / f"process-{os.getpid()}-{secrets.token_hex(4)}"
        self._folder.mkdir(mode=0o700)
        write_lease(self._folder)
        atexit.register(self._remove)
        try:
            self._launcher = choose_launcher(config, self._folder, warn)
        except BaseException:
            self._remove()
            raise
        self._places = asyncio.Semaphore(config.concurrency)
        self._open: set[ProcessSandbox] = set()
        self._counter = itertools.count(1)
        self._closed = False

    @property
    def isolated(self) -> bool:
        return self._launcher.isolated

    async def create(self, workspace: Workspace, *, owner: str) -> ProcessSandbox:
        """Raises UserError for a workspace without a folder, SandboxError when it cannot be copied."""
        if self._closed:
            raise SandboxError("the sandbox provider is closed")
        if workspace.path is None:
            raise UserError(
                f"{owner}: sandbox.kind=process needs instances with a folder on this machine, and this one has the "
                f"image {workspace.image!r}; use sandbox.kind=docker or podman"
            )
        root = self._folder / f"{_safe(owner)}-{next(self._counter)}"
        folder = self._launcher.folder(root, workspace.workdir)
        making = asyncio.ensure_future(asyncio.to_thread(_make_folder, folder, workspace.path))
        try:
            await asyncio.shield(making)
        except OSError as error:
            await asyncio.to_thread(remove_tree, root)
            raise SandboxError(f"{owner}: the workspace {workspace.path} cannot be copied: {error}") from error
        except asyncio.CancelledError:
            await asyncio.wait([making])
            await asyncio.to_thread(remove_tree, root)
            raise
        sandbox = ProcessSandbox(folder, self._launcher, self._config, self._places, self._open.discard)
        self._open.add(sandbox)
        return sandbox

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        """At the end of the process too: the folder, whatever is in it."""
        if os.getpid() != self._pid:  # a forked child
            return
        atexit.unregister(self._remove)
        if self._folder.exists():
            kill_marked(f"{self._folder}{os.sep}")
            remove_tree(self._folder)


def _make_folder(folder: SandboxFolder, source: Path) -> None:
    folder.root.mkdir(mode=0o700)
    folder.tmp.mkdir(mode=0o700)
    folder.tmp.chmod(0o1777)  # owned by this process: a command cannot replace mount points below it
    copy_tree(source, folder.work, uid=folder.uid)


def _safe(owner: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", owner).strip(".")[:80] or "sandbox"


@contextlib.contextmanager
def _status_pipe() -> Iterator[tuple[int, int]]:
    """A pipe on which a launcher says how the command ended."""
    read_fd, write_fd = os.pipe()
    try:
        os.set_blocking(read_fd, False)
        yield read_fd, write_fd
    finally:
        os.close(read_fd)
        os.close(write_fd)


def _read_now(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""


def _is_cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refusal(command: str) -> ExecResult | None:
    """What bash would say to a command that cannot be handed to it at all."""
    if "\0" in command:
        return ExecResult(126, "bash: the command contains a NUL byte\n", False, 0, 0.0)
    size_bytes = len(command.encode())
    if size_bytes > _MAX_COMMAND_BYTES:
        words = f"bash: the command is too long ({size_bytes} bytes, limit {_MAX_COMMAND_BYTES})\n"
        return ExecResult(126, words, False, 0, 0.0)
    return None
