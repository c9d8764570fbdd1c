"""One command as a process group: started, bounded in time and output, and always ended.

Invariants:
- When `run_command` returns or raises (also on cancellation, however often), the command and all it started have been
  killed and the leader is reaped.
- A process that keeps the output open cannot hold `run_command` up for more than `_DRAIN_S` after the command's end.
- Memory does not grow with the output.
- Every descriptor that is opened here is closed here, once, whatever the event loop: the pipe is read with `add_reader`
  and no transport, because uvloop's closes a descriptor that somebody else may have been given meanwhile.
"""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.sandbox.base import HeadTail
from swe_rl.sandbox.process_tree import kill_group
from swe_rl.sandbox.protocol import Waited, ends_within, no_wait

_DRAIN_S = 1.0
_READ_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class CommandSpec:
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    timeout_s: float
    pass_fds: tuple[int, ...] = ()
    waited: Waited = no_wait  # what of its time does not count for `timeout_s`


async def run_command(
    spec: CommandSpec,
    output: HeadTail,
    sweep: Callable[[int], None],
    watch: "Callable[[int], asyncio.Future[str]] | None" = None,
) -> int | None:
    """The exit status (negative: killed by that signal), or None after the timeout.

    `sweep(leader_pid)` ends what a kill of the process group does not reach; it is called after the leader's end.
    When the future of `watch(leader_pid)` resolves, the command is ended.
    Raises OSError when the command cannot be started.
    """
    loop = asyncio.get_running_loop()
    read_fd, write_fd = os.pipe()
    capture = _Capture(read_fd, output, loop)
    try:
        process = _start(spec, write_fd)
    except BaseException:
        capture.close()
        raise
    finally:
        os.close(write_fd)
    over = watch(process.pid) if watch else asyncio.get_running_loop().create_future()
    return await _finish(process, spec, capture, sweep, over)


async def _finish(
    process: "subprocess.Popen[bytes]",
    spec: CommandSpec,
    capture: "_Capture",
    sweep: Callable[[int], None],
    over: "asyncio.Future[str]",
) -> int | None:
    exited = _exit_of(process)
    timed_out = False
    try:
        ends: set[asyncio.Future[Any]] = {exited, over}
        either = asyncio.ensure_future(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
        try:
            timed_out = not await ends_within(either, spec.timeout_s, spec.waited)
        finally:
            either.cancel()
    finally:
        if not exited.done():
            kill_group(process.pid)
        ending = asyncio.ensure_future(_end(process.pid, exited, capture, sweep))
        await until_done(ending)
    return None if timed_out else exited.result()


async def until_done(task: "asyncio.Task[None]") -> None:
    """Waits for `task` also when cancelled meanwhile, then lets the cancellation go on."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end(pid: int, exited: "asyncio.Future[int]", capture: "_Capture", sweep: Callable[[int], None]) -> None:
    try:
        await exited
        await asyncio.to_thread(sweep, pid)  # it may have to wait for processes to die
        await asyncio.wait([capture.closed], timeout=_DRAIN_S)
    finally:
        capture.close()


class _Capture:
    """Feeds a pipe's read end, which it owns, to `output`; `closed` resolves when nobody holds the other end."""

    def __init__(self, fd: int, output: HeadTail, loop: asyncio.AbstractEventLoop) -> None:
        self.closed: asyncio.Future[None] = loop.create_future()
        self._fd: int | None = fd
        self._output = output
        self._loop = loop
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read, fd)

    def close(self) -> None:
        """What was not read yet is lost; closing again does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
        if not self.closed.done():
            self.closed.set_result(None)

    def _read(self, fd: int) -> None:
        if fd != self._fd:  # closed by a callback of the same round
            return
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._output.feed(data)
        else:
            self.close()


def _start(spec: CommandSpec, write_fd: int) -> "subprocess.Popen[bytes]":
    """Without a preexec function, so that Python can use vfork: a fork of a large process takes tens of ms."""
    return subprocess.Popen(
        list(spec.argv),
        stdin=subprocess.DEVNULL,
        stdout=write_fd,
        stderr=write_fd,
        env=dict(spec.env),
        cwd=spec.cwd,
        pass_fds=spec.pass_fds,
        start_new_session=True,
    )


def _exit_of(process: "subprocess.Popen[bytes]") -> "asyncio.Future[int]":
    """Resolves with the exit status once the process has been reaped."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    if not hasattr(os, "pidfd_open"):  # not Linux
        threading.Thread(target=_wait_in_thread, args=(process, loop, exited), daemon=True).start()
        return exited
    pidfd = os.pidfd_open(process.pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        # Whoever killed the leader may have left its group. The group's number is its own until the leader is reaped.
        kill_group(process.pid)
        _settle(exited, process.wait())

    loop.add_reader(pidfd, reap)
    return exited


def _wait_in_thread(
    process: "subprocess.Popen[bytes]", loop: asyncio.AbstractEventLoop, exited: "asyncio.Future[int]"
) -> None:
    status = process.wait()
    with contextlib.suppress(RuntimeError):  # the loop was closed
        loop.call_soon_threadsafe(_settle, exited, status)


def _settle(exited: "asyncio.Future[int]", status: int) -> None:
    """Where a loop ends, it cancels whoever waits."""
    if not exited.done():
        exited.set_result(status)
