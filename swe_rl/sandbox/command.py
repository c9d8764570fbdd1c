"""This module runs one command as a process group: it is started, bounded in time and output, and always ended.

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
from swe_rl.sandbox.sandbox import Waited, ends_within, no_wait

# A process that got away may keep the output open; this long the rest of the output is waited for.
_DRAIN_S = 1.0
_READ_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """This says what is run, where, with which variables and for how long."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    timeout_s: float
    pass_fds: tuple[int, ...] = ()
    waited: Waited = no_wait  # Time that this counts is not part of `timeout_s`.
    on_cpu_s: Callable[[float], None] | None = None  # It is called with the command's CPU seconds at its end.


async def run_command(
    spec: CommandSpec,
    output: HeadTail,
    sweep: Callable[[int], None],
    watch: "Callable[[int], asyncio.Future[str]] | None" = None,
) -> int | None:
    """Returns the exit status (negative where a signal of that number killed the command), or None after the timeout.

    `sweep(leader_pid)` ends what a kill of the process group does not reach; it is called after the leader's end.
    When the future of `watch(leader_pid)` resolves, the command is ended. Raises OSError when the command cannot be
    started.
    """
    loop = asyncio.get_running_loop()
    read_fd, write_fd = os.pipe()
    capture = _Capture(read_fd, output, loop)
    try:
        process = _start_process(spec, write_fd)
    except BaseException:
        capture.close()
        raise
    finally:
        os.close(write_fd)
    if watch:
        over = watch(process.pid)
    else:
        over = asyncio.get_running_loop().create_future()
    return await _finish_process(process, spec, capture, sweep, over)


async def _finish_process(
    process: "subprocess.Popen[bytes]",
    spec: CommandSpec,
    capture: "_Capture",
    sweep: Callable[[int], None],
    over: "asyncio.Future[str]",
) -> int | None:
    exited = _exit_of(process, spec.on_cpu_s)
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
        ending = asyncio.ensure_future(_end_process(process.pid, exited, capture, sweep))
        await until_done(ending)
    if timed_out:
        return None
    return exited.result()


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


async def _end_process(
    pid: int, exited: "asyncio.Future[int]", capture: "_Capture", sweep: Callable[[int], None]
) -> None:
    try:
        await exited
        # It runs in a thread, because it may have to wait for processes to die.
        await asyncio.to_thread(sweep, pid)
        await asyncio.wait([capture.closed], timeout=_DRAIN_S)
    finally:
        capture.close()


class _Capture:
    """This feeds a pipe's read end, which it owns, to `output`; `closed` resolves when nobody holds the other end."""

    def __init__(self, fd: int, output: HeadTail, loop: asyncio.AbstractEventLoop) -> None:
        self.closed: asyncio.Future[None] = loop.create_future()
        self._fd: int | None = fd
        self._output = output
        self._loop = loop
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read, fd)

    def close(self) -> None:
        """Closes the read end, so that what was not read yet is lost. Closing again does nothing."""
        fd = self._fd
        self._fd = None
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
        if not self.closed.done():
            self.closed.set_result(None)

    def _read(self, fd: int) -> None:
        if fd != self._fd:
            # Another callback of the same round has closed it.
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


def _start_process(spec: CommandSpec, write_fd: int) -> "subprocess.Popen[bytes]":
    """Starts the process, with the pipe as its output. Raises OSError where that is impossible.

    There is no preexec function, so that Python can use vfork: a fork of a large process takes tens of milliseconds.
    """
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


def _exit_of(
    process: "subprocess.Popen[bytes]", on_cpu_s: Callable[[float], None] | None = None
) -> "asyncio.Future[int]":
    """Returns a future of the exit status, which resolves once the process has been reaped.

    `on_cpu_s` is called just before.
    """
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    if not hasattr(os, "pidfd_open"):
        # Only Linux tells of a process's end by a descriptor.
        threading.Thread(target=_wait_in_thread, args=(process, loop, exited), daemon=True).start()
        return exited
    pidfd = os.pidfd_open(process.pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        # Whoever killed the leader may have left its group. The group's number is its own until the leader is reaped.
        kill_group(process.pid)
        if on_cpu_s is not None:
            on_cpu_s(cpu_s_of(process.pid))
        _settle_status(exited, process.wait())

    loop.add_reader(pidfd, reap)
    return exited


def cpu_s_of(pid: int) -> float:
    """Returns the CPU seconds of a process and of those that it waited for, or 0 where /proc does not tell.

    The process may have ended already, as long as it was not reaped.
    """
    try:
        # The name of the program is in brackets and may hold anything. Behind it the state is field 3.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))  # These fields are utime, stime, cutime and cstime.
    except (OSError, ValueError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait_in_thread(
    process: "subprocess.Popen[bytes]", loop: asyncio.AbstractEventLoop, exited: "asyncio.Future[int]"
) -> None:
    status = process.wait()
    # The loop may have been closed, and then nobody waits for the status.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle_status, exited, status)


def _settle_status(exited: "asyncio.Future[int]", status: int) -> None:
    """Gives the status to whoever waits for it; a loop that ends may have cancelled the wait."""
    if not exited.done():
        exited.set_result(status)
