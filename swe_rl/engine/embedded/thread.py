"""The one thread in which the embedded engine computes.

Invariants:
- All access to the core goes through `post`: commands run in the engine's thread, in order, between two steps.
- An exception in a step is fatal: pending and later requests fail with EngineError whose cause is the real one.
- `close` ends the thread and joins it; what is pending then fails.
- `num_threads` is set inside the thread, once, and only where it differs. Measured on torch 2.13: threads that have
  used torch keep their own intra-op count, but a thread that first uses torch later starts with the last count that any
  thread has set. A trainer whose count differs from the engine's sets it in its own thread.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable

import torch

from swe_rl.engine.embedded.core import EngineCore
from swe_rl.engine.protocol import EngineError

Command = Callable[[], None]


class EngineThread:
    def __init__(self, core: EngineCore, name: str, num_threads: int) -> None:
        self._core = core
        self._name = name
        self._num_threads = num_threads
        self._inbox: deque[Command] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: EngineError | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self.failure is None and not self._closing

    def start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name=f"engine-{self._name}", daemon=True)
        self._thread.start()

    def post(self, command: Command) -> None:
        """Runs `command` in the engine's thread between two steps; raises EngineError when that will never happen."""
        with self._wake:
            if not self.alive:
                raise self.unavailable()
            self._inbox.append(command)
            self._wake.notify()

    def close(self) -> None:
        """Blocks until the current step is over and the thread has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def unavailable(self) -> EngineError:
        if self.failure is not None:
            error = EngineError(str(self.failure))
            error.__cause__ = self.failure.__cause__
            return error
        state = "is closed" if self._closing else "was not started; await start() first"
        return EngineError(f"Engine `{self._name}` {state}.")

    def _run(self) -> None:
        try:
            if torch.get_num_threads() != self._num_threads:
                torch.set_num_threads(self._num_threads)
            with torch.inference_mode():
                self._serve()
            self._end(EngineError(f"Engine `{self._name}` was closed before this request was done."))
        except BaseException as cause:  # whatever it is, nobody may be left waiting for this thread
            error = EngineError(f"Engine `{self._name}` failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._end(error, failed=True)

    def _end(self, error: EngineError, failed: bool = False) -> None:
        with self._wake:
            if failed:
                self.failure = error
            self._closing = True
            late = list(self._inbox)
            self._inbox.clear()
        for command in late:  # submissions only queue; their requests then fail below with the rest
            with contextlib.suppress(Exception):
                command()
        self._core.fail_all(error)

    def _serve(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._inbox or self._ready())
                if self._closing:
                    return
                commands = list(self._inbox)
                self._inbox.clear()
            for command in commands:
                command()
            if self._ready():
                self._core.step()

    def _ready(self) -> bool:
        return self._core.has_work and not self._core.paused
