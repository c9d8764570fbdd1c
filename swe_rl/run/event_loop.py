"""The event loop of a job: uvloop's where it is installed, asyncio's own else.

Invariants:
- Ctrl-C cancels the job's coroutine, as `asyncio.run` does it, under either.
- A thousand trajectories hold several thousand connections and files: the soft limit of many shells, 1024, is raised.
"""

import asyncio
import resource
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_FILES = 65_536


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    open_more_files()
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(work)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
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
