"""The requests that wait for one server, and the one reason for which all of them can fail.

Invariants:
- `fail` ends every waiting request with its reason at once, and refuses new ones until `readmit`.
- A caller that is cancelled takes its request with it; that is never mistaken for a failure.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from swe_rl.engine.protocol import EngineError

T = TypeVar("T")


class InFlight:
    def __init__(self) -> None:
        self.failure: EngineError | None = None
        self._prompt_tokens: dict[asyncio.Task[Any], int] = {}

    def __len__(self) -> int:
        return len(self._prompt_tokens)

    @property
    def tokens(self) -> int:
        """Of the prompts of all that wait."""
        return sum(self._prompt_tokens.values())

    def check(self) -> None:
        """Raises EngineError while the server is lost."""
        if self.failure is not None:
            raise EngineError(str(self.failure)) from self.failure

    async def run(self, request: Coroutine[Any, Any, T], prompt_tokens: int) -> T:
        """Raises EngineError when `fail` was called meanwhile, or what `request` raises."""
        task = asyncio.ensure_future(request)
        self._prompt_tokens[task] = prompt_tokens
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                task.cancel()
                raise
            self.check()
            raise
        finally:
            del self._prompt_tokens[task]

    def fail(self, error: EngineError) -> None:
        self.failure = error
        for task in list(self._prompt_tokens):
            task.cancel()

    def readmit(self) -> None:
        self.failure = None
