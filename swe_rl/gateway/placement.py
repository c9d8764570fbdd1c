"""This module drives the router: requests wait here until the router places them.

Invariants:
- Every request that arrived is finished exactly once, also when its caller is cancelled while it is held.
- All router events come from the event loop's thread, in order; the first is a look at the engines' load.
- A router that fails at a tick fails what is held, with its own error, and gets the next tick.
- An engine that dies or serves again tells the router at once, not at the next tick. When no engine will serve again,
  what is held fails.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from swe_rl.engine.engine import Engine, EngineState
from swe_rl.gateway.engine_health import EngineHealth
from swe_rl.router.core import (
    EngineAdded,
    EngineLoad,
    Event,
    GroupLeft,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    Router,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)

_log = logging.getLogger(__name__)


class PlacedRequest:
    """Describes a request that the router gave to an engine. `context_tokens` is what the program holds once the
    request is finished, and `cached_tokens` how much of its prompt the engine had cached. The caller keeps both up to
    date."""

    def __init__(self, engine: Engine, context_tokens: int) -> None:
        self.engine = engine
        self.context_tokens = context_tokens
        self.cached_tokens: int | None = None


@dataclass(slots=True)
class CacheReturns:
    """Counts programs that came back to ask for their next turn: what they had before, and what of it was cached.

    Turns whose engine does not say what it had cached are left out. So are prompts that are shorter than what the
    program had: its conversation was compacted, or it is another one, and no engine could have kept its beginning.
    """

    returns_total: int = 0
    reusable_total: int = 0
    reused_total: int = 0
    # Has the tokens of each program after its latest turn.
    _held: dict[str, int] = field(default_factory=dict)

    def note(self, program_id: str, prompt_tokens: int, context_tokens: int, cached_tokens: int | None) -> None:
        if cached_tokens is None:
            return
        before = self._held.get(program_id, 0)
        if 0 < before <= prompt_tokens:
            self.returns_total += 1
            self.reusable_total += before
            self.reused_total += min(before, cached_tokens)
        self._held[program_id] = context_tokens

    def forget(self, program_id: str) -> None:
        self._held.pop(program_id, None)

    def clear(self) -> None:
        """Notes that no cache outlives an update of the weights: what is missing then is nobody's fault."""
        self._held.clear()


class Placement:
    def __init__(self, router: Router, engines: Sequence[Engine], clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._engines = {engine.name: engine for engine in engines}
        self._clock = clock
        self._held: dict[str, asyncio.Future[str]] = {}
        self.returns = CacheReturns()
        self.health = EngineHealth(self._engines, self._feed, clock)
        self._ticks: asyncio.Task[None] | None = None
        # Counts updates of the weights.
        self.syncs = 0
        self._syncs_under_way = 0

    def start(self) -> None:
        for name, engine in self._engines.items():
            engine.on_change = partial(self._changed, name)
            # The engine did not come up again with the others.
            if engine.state is EngineState.gone:
                self._changed(name, False)
        self.health.start()
        if self._router.tick_s is not None:
            # The router needs the capacities before the first request.
            self._look()
            self._ticks = asyncio.get_running_loop().create_task(self._tick(self._router.tick_s))

    async def close(self) -> None:
        await self.health.close()
        if self._ticks is not None:
            self._ticks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticks
            self._ticks = None

    @contextlib.asynccontextmanager
    async def place(
        self, program_id: str, request_id: str, prompt_tokens: int, group_id: str | None = None, turn: int | None = None
    ) -> AsyncIterator[PlacedRequest]:
        """Waits until the router lets the request go, and tells the router when the block is left."""
        # The request is finished in the outer block: a caller that is cancelled while its request is held never had an
        # engine.
        waiting = self._held[request_id] = asyncio.get_running_loop().create_future()
        context_tokens = prompt_tokens
        cached_tokens = None
        try:
            self._feed(RequestArrived(program_id, request_id, prompt_tokens, group_id, turn))
            placed = PlacedRequest(self._engines[await waiting], prompt_tokens)
            try:
                yield placed
            finally:
                context_tokens = placed.context_tokens
                cached_tokens = placed.cached_tokens
        finally:
            self._held.pop(request_id, None)
            self.returns.note(program_id, prompt_tokens, context_tokens, cached_tokens)
            self._feed(RequestFinished(program_id, request_id, context_tokens, cached_tokens))

    def release(self, program_id: str) -> None:
        self._feed(ProgramReleased(program_id))
        self.returns.forget(program_id)
        for engine in self._engines.values():
            engine.release_session(program_id)

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        """Encloses a weight update. Nothing is placed meanwhile, and no prefix cache outlives the update."""
        self._feed(SyncBegan())
        self.returns.clear()
        self.syncs += 1
        self._syncs_under_way += 1
        try:
            yield
        finally:
            self.returns.clear()
            self._syncs_under_way -= 1
            self._feed(SyncEnded())

    def tail(self, active: bool) -> None:
        """Tells the router whether the step is in its tail: with `active`, no new program will come in this step."""
        self._feed(StepTail(active))

    def group_left(self, group_id: str, programs: int) -> None:
        """Tells the router how many programs of a group have not ended."""
        self._feed(GroupLeft(group_id, programs))

    def snapshot(self) -> dict[str, object]:
        """Returns the router's state, and under `health` whether engines answer what they are sent."""
        return {**self._router.snapshot(), "health": self.health.snapshot()}

    @property
    def syncing_now(self) -> bool:
        """Tells whether new weights are on their way."""
        return self._syncs_under_way > 0

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
            try:
                self._look()
            except Exception as error:
                # The fault is ours. Without ticks, requests that wait for one would wait for ever.
                _log.exception("the router failed at a tick")
                self._fail_held(error)

    def _fail_held(self, error: Exception) -> None:
        for waiting in self._held.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _look(self) -> None:
        self._feed(Tick(tuple(self._load(engine) for engine in self._engines.values())))

    def _changed(self, name: str, up: bool) -> None:
        self.health.changed(name, up)
        if all(engine.state is EngineState.gone for engine in self._engines.values()):
            capacity = self._engines[name].stats().kv_capacity_tokens
            # Held requests fail at this engine with its reason, instead of waiting on.
            self._feed(EngineAdded(name, capacity))

    @staticmethod
    def _load(engine: Engine) -> EngineLoad:
        stats = engine.stats()
        return EngineLoad(
            engine.name,
            stats.running,
            stats.waiting,
            stats.kv_used_tokens,
            stats.kv_capacity_tokens,
            stats.preemptions_total,
            stats.host_capacity_tokens,
        )
