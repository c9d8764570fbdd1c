"""Drives the router: requests wait here until it places them.

Invariants:
- Every request that arrived is finished exactly once, also when its caller is cancelled while it is held.
- All router events come from the event loop's thread, in order.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from swe_rl.engine.protocol import Engine
from swe_rl.router.core import EngineLoad, Event, ProgramReleased, RequestArrived, RequestFinished, Router, Tick


class Placed:
    """`context_tokens` is what the program holds once the request is finished; its caller keeps it up to date."""

    def __init__(self, engine: Engine, context_tokens: int) -> None:
        self.engine = engine
        self.context_tokens = context_tokens


class Placement:
    def __init__(self, router: Router, engines: Sequence[Engine], clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._engines = {engine.name: engine for engine in engines}
        self._clock = clock
        self._held: dict[str, asyncio.Future[str]] = {}
        self._ticks: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._router.tick_s is not None:
            self._ticks = asyncio.get_running_loop().create_task(self._tick(self._router.tick_s))

    async def close(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticks
            self._ticks = None

    @contextlib.asynccontextmanager
    async def place(self, program_id: str, request_id: str, prompt_tokens: int) -> AsyncIterator[Placed]:
        """Waits until the router lets the request go, and tells it when the block is left."""
        waiting = self._held[request_id] = asyncio.get_running_loop().create_future()
        context_tokens = prompt_tokens
        try:
            self._feed(RequestArrived(program_id, request_id, prompt_tokens))
            placed = Placed(self._engines[await waiting], prompt_tokens)
            try:
                yield placed
            finally:
                context_tokens = placed.context_tokens
        finally:
            self._held.pop(request_id, None)
            self._feed(RequestFinished(program_id, request_id, context_tokens))

    def release(self, program_id: str) -> None:
        self._feed(ProgramReleased(program_id))
        for engine in self._engines.values():
            engine.release_session(program_id)

    @property
    def held(self) -> int:
        return sum(not waiting.done() for waiting in self._held.values())

    def _feed(self, event: Event) -> None:
        for action in self._router.handle(event, self._clock()):
            waiting = self._held.get(action.request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(action.engine)

    async def _tick(self, tick_s: float) -> None:
        while True:
            await asyncio.sleep(tick_s)
            self._feed(Tick(tuple(self._load(engine) for engine in self._engines.values())))

    @staticmethod
    def _load(engine: Engine) -> EngineLoad:
        stats = engine.stats()
        return EngineLoad(engine.name, stats.running, stats.waiting, stats.kv_used_tokens, stats.kv_capacity_tokens)
