"""Runs a job's event loop: uvloop's where it is installed, asyncio's own else.

Invariants:
- Ctrl-C cancels the job's coroutine, as `asyncio.run` does it, under either. `interrupt_job` does the same where Ctrl-C
  is ignored: an exception raised into the loop would end it, and with it what must not be cut short.
- Whatever the loop is doing, `host/ending` hears of a signal and bounds the time until the process has ended.
- A thousand trajectories hold several thousand connections and files: the soft limit of many shells, 1024, is raised.
"""

import asyncio
import resource
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from swe_rl.host import ending

T = TypeVar("T")
_FILES = 65_536


@dataclass(slots=True)
class _Job:
    """The work of the main thread's loop. `interrupted` says that somebody asked it to end."""

    loop: asyncio.AbstractEventLoop
    task: "asyncio.Task[Any]"
    interrupted: bool = False


_running: _Job | None = None


def run_job(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` as `asyncio.run` does."""
    global _running
    open_more_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_run_known(work))
        except asyncio.CancelledError:
            if _running is not None and _running.interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            _running = None
            ending.after_loop()


async def _run_known(work: Coroutine[Any, Any, T]) -> T:
    global _running
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        _running = _Job(asyncio.get_running_loop(), task)
    with ending.beside_loop():
        return await work


def interrupt_job() -> bool:
    """Ends the running job as Ctrl-C does; it is for a handler of signals. Returns False where no job runs."""
    if _running is None:
        return False
    _running.interrupted = True
    _running.task.cancel()
    # The loop may be waiting for something to do.
    _running.loop.call_soon_threadsafe(lambda: None)
    return True


async def run_together(work: Coroutine[Any, Any, T], beside: Coroutine[Any, Any, object]) -> T:
    """Returns the result of `work`, once `beside` has ended as well.

    If one of them fails, or this task is cancelled, what still runs is cancelled; the error is raised when both have
    ended.
    """
    tasks: tuple[asyncio.Task[T], asyncio.Task[object]] = (asyncio.ensure_future(work), asyncio.ensure_future(beside))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    finally:
        for task in tasks:
            # It is cancelled once: a second time would cut short what the first one has set off.
            task.cancel()
        await run_uninterrupted(asyncio.gather(*tasks, return_exceptions=True))
    for task in failed:
        task.result()
    tasks[1].result()
    return tasks[0].result()


async def run_uninterrupted(work: Awaitable[object]) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.cancelled() or task.exception() is None:
            raise
    # It raises its own error, with its own cause.
    task.result()


def open_more_files() -> None:
    """Raises the limit of open files to what this user may have; what is started later may have as many."""
    wanted = _FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
