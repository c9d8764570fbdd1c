"""The event loop of a job: uvloop's where it is installed, asyncio's own else.

Invariants:
- Ctrl-C cancels the job's coroutine, as `asyncio.run` does it, under either. `interrupt` does the same where Ctrl-C is
  ignored: an exception raised into the loop would end it, and with it what must not be cut short.
- A thousand trajectories hold several thousand connections and files: the soft limit of many shells, 1024, is raised.
"""

import asyncio
import resource
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_FILES = 65_536


@dataclass(slots=True)
class _Job:
    """What the main thread's loop runs. `interrupted`: somebody asked it to end."""

    loop: asyncio.AbstractEventLoop
    task: "asyncio.Task[Any]"
    interrupted: bool = False


_running: _Job | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    global _running
    open_more_files()
    with asyncio.Runner(loop_factory=_factory()) as runner:
        try:
            return runner.run(_known(work))
        except asyncio.CancelledError:
            if _running is not None and _running.interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            _running = None


async def _known(work: Coroutine[Any, Any, T]) -> T:
    global _running
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        _running = _Job(asyncio.get_running_loop(), task)
    return await work


def interrupt() -> bool:
    """For a handler of signals: ends the running job as Ctrl-C does. False where no job runs."""
    if _running is None:
        return False
    _running.interrupted = True
    _running.task.cancel()
    _running.loop.call_soon_threadsafe(lambda: None)  # it may be waiting for something to do
    return True


async def together(work: Coroutine[Any, Any, T], beside: Coroutine[Any, Any, object]) -> T:
    """The result of `work`, once `beside` has ended as well. If one of them fails, or this task is cancelled, what
    still runs is cancelled; the error is raised when both have ended."""
    tasks: tuple[asyncio.Task[T], asyncio.Task[object]] = (asyncio.ensure_future(work), asyncio.ensure_future(beside))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    finally:
        for task in tasks:
            task.cancel()  # once: a second time would cut short what the first one has set off
        await uninterrupted(asyncio.gather(*tasks, return_exceptions=True))
    for task in failed:
        task.result()
    tasks[1].result()
    return tasks[0].result()


async def uninterrupted(work: Awaitable[object]) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.cancelled() or task.exception() is None:
            raise
    task.result()  # its own error, with its own cause


def open_more_files() -> None:
    """Up to what this user may have; what is started later may have as many."""
    wanted, hard = _FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
