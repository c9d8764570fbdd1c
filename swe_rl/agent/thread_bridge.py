"""A blocking program in a thread of its own that calls back into the event loop, and can be stopped from it.

Invariants:
- The thread waits for one coroutine at a time; `stop` cancels it, and whatever the thread calls next is refused.
- Each program has its own thread: programs neither wait for each other nor use up the loop's shared executor.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The event loop no longer wants the program's result."""


class ThreadBridge:
    """Made in the event loop; `call` is for the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting_for: Future[Any] | None = None
        self._is_stopped = False

    async def run(self, program: Callable[[], T], *, name: str) -> T:
        """The program's result or exception. Cancelling this stops the program and waits until its thread is done."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        work = self._loop.run_in_executor(executor, program)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # looked at: nobody else will
            raise
        finally:
            executor.shutdown(wait=False)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` in the event loop and waits for it. Raises what it raises, or Stopped."""
        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise Stopped
            self._waiting_for = future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Stopped from None

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._waiting_for is not None:
                self._waiting_for.cancel()
