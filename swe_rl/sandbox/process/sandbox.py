"""This module is one sandbox of local processes: its commands, its files, its end.

Invariants:
- Nothing that a command started outlives it: when `exec` returns, its processes are gone. So nothing that an agent left
  running is there when its patch is taken.
- Commands of one sandbox take turns, and at most as many as there are places run at a time; waiting is not in a
  command's timeout.
- A command that uses more than the sandbox may is ended, by the kernel or by the watcher, and its output says so: that
  is the policy's doing.
- With a doorway, every command finds the door's address answering; without one nothing is added to a command.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.base import HeadTail, LocalSandbox, clear_away
from swe_rl.sandbox.command import CommandSpec, run_command
from swe_rl.sandbox.confined_path import read_confined, write_confined
from swe_rl.sandbox.door import Doorway
from swe_rl.sandbox.process.control_group import ControlGroup
from swe_rl.sandbox.process.launcher import Launcher, SandboxFolder
from swe_rl.sandbox.process.snapshots import ProcessSnapshots
from swe_rl.sandbox.process.watcher import Folder, Watched, Watcher
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, OutsideError, SandboxError, Snapshot, Waited
from swe_rl.sandbox.working_copy import remove_tree

Done = TypeVar("Done")
_KILLED_EXIT = 137  # A shell gives this status for a command that SIGKILL ended.


@dataclass(frozen=True, slots=True)
class Bounded:
    """This is what bounds one sandbox: a watcher, and the kernel where `group` is given."""

    watcher: Watcher
    folder: Folder
    group: ControlGroup | None


class ProcessSandbox(LocalSandbox):
    """This is a sandbox with one working copy, as the protocol says. ProcessProvider makes it."""

    def __init__(
        self,
        folder: SandboxFolder,
        launcher: Launcher,
        config: SandboxConfig,
        places: asyncio.Semaphore,
        forget: Callable[["ProcessSandbox"], None],
        *,
        bounded: "Bounded",
        snapshots: ProcessSnapshots,
        door_url: str | None = None,
        doorway: Doorway | None = None,
    ) -> None:
        super().__init__(folder.root.name, folder.workdir, config, door_url=door_url, doorway=doorway)
        self._bounded = bounded
        self._snapshots = snapshots
        self._broken = ""
        self._removing: set[asyncio.Future[None]] = set()
        self._folder = folder
        self._launcher = launcher
        self._places = places
        self._forget = forget
        self._turn = asyncio.Lock()
        self._counter = itertools.count()
        # Its commands used these CPU seconds so far. A command that is stopped counts with its time by the clock.
        self.cpu_s = 0.0

    def _count_cpu(self, cpu_s: float) -> None:
        self.cpu_s += cpu_s

    async def _run(
        self, command: str, output: HeadTail, timeout_s: float, env: Mapping[str, str], waited: Waited
    ) -> tuple[int | None, float]:
        return await self._until_closed(self._in_turn(command, timeout_s, env, output, waited))

    async def _in_turn(
        self, command: str, timeout_s: float, env: Mapping[str, str], output: HeadTail, waited: Waited
    ) -> tuple[int | None, float]:
        async with self._turn, self._places:
            self._check_open()
            started_s = time.monotonic()
            try:
                status = await self._launch(command, timeout_s, env, output, waited)
            except OSError as error:
                raise OutsideError(f"sandbox {self.sandbox_id} cannot start a command: {error}") from error
            if status is None:
                self._count_cpu(timeout_s)
                return None, timeout_s
            return status if status >= 0 else 128 - status, time.monotonic() - started_s

    async def _launch(
        self, command: str, timeout_s: float, env: Mapping[str, str], output: HeadTail, waited: Waited
    ) -> int | None:
        marker = f"{self._folder.root}{os.sep}{next(self._counter)}"
        # Isolated commands end with their namespace. Of others, only what is newer than this may be killed.
        before = frozenset() if self._launcher.isolated else frozenset(psutil.pids())
        with _status_pipe() as (status_in, status_out, report_out):
            launch = self._launcher.launch(
                self._folder, command, timeout_s=timeout_s, status_fd=status_out, report_fd=report_out, marker=marker
            )
            isolated = self._launcher.isolated
            group = self._bounded.group
            before_it = None
            if group:
                before_it = group.kills()
            spec = CommandSpec(
                argv=group.entered(launch.argv, self._launcher.bash) if group else launch.argv,
                env={**launch.env, **env},
                cwd=Path("/") if isolated else self._folder.work,
                timeout_s=timeout_s,
                waited=waited,
                pass_fds=(status_out, report_out) if isolated else (),
                on_cpu_s=self._count_cpu,
            )
            said = bytearray()

            def sweep(pid: int) -> None:
                said.extend(_read_now(status_in))
                self._launcher.sweep(pid, marker, before, bytes(said))

            watched: list[Watched] = []  # It stays empty where the command could not be started.

            def watch(pid: int) -> "asyncio.Future[str]":
                watched.append(self._bounded.watcher.watch(pid, self._bounded.folder, isolated=isolated))
                return watched[0].over

            try:
                status = await run_command(spec, output, sweep, watch)
            finally:
                for command_watched in watched:
                    self._bounded.watcher.forget(command_watched)
            if status == -signal.SIGKILL and watched[0].over.done():
                return self._ended(output, watched[0].over.result())
            if group and before_it and group.kills().are_more_than(before_it):
                return self._ended(output, f"more than {self._config.memory_gb:g} GB of memory (sandbox.memory_gb)")
            if status is not None and not self._launcher.started_well(bytes(said), status):
                raise SandboxError(f"sandbox {self.sandbox_id} could not be entered: {output.text()[-500:]}")
            if status is None:
                return None
            seen = self._launcher.seen_end(bytes(said), status)
            if seen is None:
                raise OutsideError(f"a command of sandbox {self.sandbox_id} was killed from outside (status {status})")
            return seen

    def _ended(self, output: HeadTail, used: str) -> int:
        output.feed(f"\n{USED_TOO_MUCH} {used}.\n".encode())
        return _KILLED_EXIT

    async def snapshot(self) -> Snapshot:
        """Returns a snapshot as the protocol says. Raises SandboxError where the files cannot be set aside."""
        return await self._until_closed(self._between_commands(self._take, undo=self._snapshots.drop))

    async def reset(self, snapshot: Snapshot) -> None:
        """Brings the files back as the protocol says."""
        stale = await self._until_closed(self._between_commands(partial(self._put_back, snapshot)))
        removing = asyncio.ensure_future(asyncio.to_thread(self._remove_stale, stale))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    async def _between_commands(self, work: Callable[[], Done], undo: Callable[[Done], None] | None = None) -> Done:
        """Returns what `work` returns in a thread, while no command runs. Raises SandboxError.

        Work that fails half way leaves the sandbox broken. `undo` takes back what nobody gets, as the caller was
        cancelled.
        """
        async with self._turn:
            self._check_open()
            running = asyncio.ensure_future(asyncio.to_thread(self._work_or_break, work))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # Nobody else may touch the folder before the thread is done with it.
                await asyncio.wait([running])
                if undo is not None and running.exception() is None:
                    await asyncio.to_thread(undo, running.result())
                raise

    def _work_or_break(self, work: Callable[[], Done]) -> Done:
        try:
            return work()
        except OSError as error:
            self._broken = f"its files could not be set aside or brought back: {error}"
            raise SandboxError(f"sandbox {self.sandbox_id}: {self._broken}") from error

    def _take(self) -> Snapshot:
        snapshot, self._folder = self._snapshots.take(self._folder)
        return snapshot

    def _put_back(self, snapshot: Snapshot) -> Path:
        self._folder, stale = self._snapshots.reset(snapshot, self._folder)
        return stale

    def _remove_stale(self, stale: Path) -> None:
        # What cannot be removed now is removed with the sandbox.
        with contextlib.suppress(OSError):
            remove_tree(stale)

    def _check_open(self) -> None:
        super()._check_open()
        if self._broken:
            raise SandboxError(f"sandbox {self.sandbox_id} is broken: {self._broken}")

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        await asyncio.to_thread(self._write, path, content)

    def _write(self, path: str, content: bytes) -> None:
        with self._folder.reached() as work:
            write_confined(work, path, content, workdir=self.workdir, uid=self._folder.uid)

    async def read_file(self, path: str) -> bytes:
        """Returns a file's content. Raises MissingFileError (a SandboxError and a FileNotFoundError) without a file."""
        self._check_open()
        return await asyncio.to_thread(self._read, path)

    def _read(self, path: str) -> bytes:
        with self._folder.reached() as work:
            return read_confined(work, path, workdir=self.workdir, max_bytes=self._max_bytes)

    async def _close(self) -> None:
        await self._end_running()
        await asyncio.gather(*self._removing)
        if self._doorway is not None:
            await self._doorway.close()
        try:
            await asyncio.to_thread(self._remove)
        finally:
            self._forget(self)

    def _remove(self) -> None:
        if self._bounded.group is not None:
            self._bounded.group.remove()
        if not self._launcher.isolated:
            kill_marked(f"{self._folder.root}{os.sep}")
        if self._folder.namespace is not None:
            self._folder.namespace.close()
        clear_away(self._folder.root, self.sandbox_id)
        try:
            self._snapshots.release(self._folder.stacks)
        except OSError as error:
            raise SandboxError(f"sandbox {self.sandbox_id}: a layer cannot be removed: {error}") from error


@contextlib.contextmanager
def _status_pipe() -> Iterator[tuple[int, int, int]]:
    """Yields a pipe's end to read, and two ends to write: a launcher, and what it starts, say how the command ended."""
    read_fd, write_fd = os.pipe()
    report_fd = os.dup(write_fd)  # What bwrap starts does not get bwrap's own end.
    try:
        os.set_blocking(read_fd, False)
        yield read_fd, write_fd, report_fd
    finally:
        for descriptor in (read_fd, write_fd, report_fd):
            os.close(descriptor)


def _read_now(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""
