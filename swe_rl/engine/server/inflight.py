"""The requests that wait for one server, and the one reason for which all of them can fail.

Invariants:
- `fail` ends every waiting request with its reason at once, and refuses new ones until `readmit`.
- `interrupt` ends every waiting request, too, but to be sent again.
- What the loss of the server has cost is counted once: requests that broke off since its last reply, and those that
  were still waiting when it was given up.
- A caller that is cancelled takes its request with it; that is never mistaken for a failure.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from swe_rl.engine.loss import Loss
from swe_rl.engine.protocol import EngineError
from swe_rl.engine.server.client import ServerFailingError, UnreachableError

T = TypeVar("T")


class Interrupted(Exception):
    """The request was ended here and is to be sent again."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    prompt_tokens: int
    since_s: float


class InFlight:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure: EngineError | None = None
        self._clock = clock
        self._waiting: dict[asyncio.Task[Any], _Waiting] = {}
        self._interrupted: set[asyncio.Task[Any]] = set()
        self._broken_s: list[float] = []
        self.loss = Loss()  # the latest

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Of the prompts of all that wait."""
        return sum(one.prompt_tokens for one in self._waiting.values())

    def check(self) -> None:
        """Raises EngineError while the server is lost."""
        if self.failure is not None:
            raise EngineError(str(self.failure)) from self.failure

    async def run(self, request: Coroutine[Any, Any, T], prompt_tokens: int) -> T:
        """Raises EngineError when `fail` was called meanwhile, Interrupted, or what `request` raises."""
        task = asyncio.ensure_future(request)
        self._waiting[task] = _Waiting(prompt_tokens, self._clock())
        try:
            done = await task
        except UnreachableError:  # nothing was sent
            raise
        except ServerFailingError:
            self._broken_s.append(self._clock() - self._waiting[task].since_s)
            raise
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                task.cancel()
                raise
            self.check()
            if task in self._interrupted:
                raise Interrupted from None
            raise
        else:
            self._broken_s.clear()
            return done
        finally:
            del self._waiting[task]
            self._interrupted.discard(task)

    def interrupt(self) -> None:
        for task in self._waiting:
            if not task.done():
                self._interrupted.add(task)
                task.cancel()

    def fail(self, error: EngineError) -> None:
        if self.failure is None:
            now_s = self._clock()
            spent_s = self._broken_s + [now_s - one.since_s for one in self._waiting.values()]
            self.loss = Loss(len(spent_s), sum(spent_s))
            self._broken_s = []
        self.failure = error
        for task in list(self._waiting):
            task.cancel()

    def readmit(self) -> None:
        self.failure = None
