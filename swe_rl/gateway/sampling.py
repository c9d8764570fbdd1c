"""What of a call is done where router, engines and trace store are: placed, sampled, checked, kept.

Invariants:
- What an engine that died left undone another one does: nothing of it was recorded, and its seed is the same.
- A trace is in the store's hands when `record` returns; a call that failed or was aborted leaves none.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from swe_rl.algo.row import Routes
from swe_rl.engine.protocol import Completion, ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.token_ids import TokenIds
from swe_rl.extension.make import ExtensionFailure
from swe_rl.gateway.errors import ApiError, context_overflow, engine_failure, unavailable
from swe_rl.gateway.placement import Placed, Placement
from swe_rl.gateway.session import Recorded, TurnPlan
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace, known_routes
from swe_rl.model.experts import unknown_route

if TYPE_CHECKING:  # the types of what it is given
    from swe_rl.gateway.live import LiveSession, Waits
    from swe_rl.gateway.metrics import GatewayMetrics

_ENGINE_TRIES = 3  # of one call, on whichever engine the router gives it
_log = logging.getLogger(__name__)


class EngineGoneError(Exception):
    """The engine failed before it answered; `answer` is what the client is told when no other one takes over.
    `held_s`: for how long the router had held the request by then."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(str(answer))
        self.answer, self.held_s = answer, 0.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """`held_s`: for how long the router held the request. `call` is its number where another process recorded it."""

    completion: Completion
    engine: str
    held_s: float
    call: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt of a session, the `number`-th that it asks. What waits is counted in `waits`."""

    session_id: str
    group_id: str | None
    number: int
    prompt_ids: TokenIds
    params: SamplingParams
    waits: "Waits"


class Sampler(Protocol):
    async def sample(self, live: "LiveSession", plan: TurnPlan, params: SamplingParams, *, logprobs: bool) -> Sampled:
        """`logprobs`: whether the caller looks at them. Raises ApiError. Cancelling it aborts the request."""

    async def record(
        self, live: "LiveSession", plan: TurnPlan, turn: Recorded, sampled: Sampled, started_s: float
    ) -> None:
        """`started_s`: when the call came. Raises TraceStoreError."""


class Sampling:
    """A Sampler in the process of router, engines and store."""

    def __init__(
        self,
        placement: Placement,
        store: TraceStore,
        metrics: "GatewayMetrics",
        *,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._placement = placement
        self._store = store
        self._metrics = metrics
        self._max_model_len = max_model_len
        self._clock = clock
        self._request_numbers = count()

    async def sample(self, live: "LiveSession", plan: TurnPlan, params: SamplingParams, *, logprobs: bool) -> Sampled:
        group_id = live.settings.group_id if live.settings else None
        return await self.answer(Wanted(live.session_id, group_id, plan.number, plan.prompt_ids, params, live.waits))

    async def record(
        self, live: "LiveSession", plan: TurnPlan, turn: Recorded, sampled: Sampled, started_s: float
    ) -> None:
        await self.keep(live.session_id, plan.prompt_ids, turn, sampled, self._clock() - started_s)

    async def answer(self, wanted: Wanted) -> Sampled:
        """Raises ApiError."""
        held_s = 0.0
        for again in range(_ENGINE_TRIES):
            try:
                return await self._answer_once(wanted, held_s)
            except EngineGoneError as gone:
                self._metrics.retries.inc()
                held_s = gone.held_s
                if again == _ENGINE_TRIES - 1:
                    raise gone.answer from gone.__cause__
        raise AssertionError("the loop returns or raises")

    async def keep(
        self, session_id: str, prompt_ids: TokenIds, turn: Recorded, sampled: Sampled, call_s: float
    ) -> None:
        """Raises TraceStoreError."""
        await self._store.append_async(_trace(session_id, prompt_ids, turn, sampled))
        completion = sampled.completion
        self._metrics.prompt_tokens.inc(len(prompt_ids))
        self._metrics.sampled_tokens.inc(len(completion.token_ids))
        self._metrics.cached_tokens.inc(completion.cached_tokens)
        self._metrics.call_s.observe(call_s)
        if turn.break_kind is not None:
            self._metrics.breaks.labels(turn.break_kind.value).inc()

    async def _answer_once(self, wanted: Wanted, held_s: float) -> Sampled:
        session_id, length = wanted.session_id, len(wanted.prompt_ids)
        request_id = f"{session_id}#{next(self._request_numbers)}"
        started_s, end_wait = self._clock(), wanted.waits.begin()
        try:
            async with self._placement.place(session_id, request_id, length, wanted.group_id, wanted.number) as placed:
                end_wait()
                held_s += self._clock() - started_s
                completion = await self._asked(wanted, placed, request_id)
                placed.context_tokens += len(completion.token_ids)
                placed.cached_tokens = completion.cached_tokens
        except EngineGoneError as gone:
            gone.held_s = held_s
            raise
        except ExtensionFailure as error:  # of a router of somebody's own
            raise engine_failure(500, str(error)) from error
        finally:
            end_wait()
        return Sampled(completion, placed.engine.name, held_s)

    async def _asked(self, wanted: Wanted, placed: Placed, request_id: str) -> Completion:
        """As `_ask`; what was queued there, or came to nothing with the engine, was waited."""
        sent_s = self._clock()
        try:
            completion = await self._ask(wanted, placed, request_id)
        except EngineGoneError:
            wanted.waits.add(sent_s, self._clock())
            raise
        wanted.waits.add(sent_s, min(sent_s + completion.queue_s, self._clock()))
        return completion

    async def _ask(self, wanted: Wanted, placed: Placed, request_id: str) -> Completion:
        engine, prompt_ids = placed.engine, wanted.prompt_ids
        try:
            completion = await engine.generate(
                prompt_ids, wanted.params, request_id=request_id, session_id=wanted.session_id
            )
        except ContextOverflowError as error:
            raise context_overflow(len(prompt_ids), self._max_model_len, f"engine {engine.name}: {error}") from error
        except EngineError as error:
            answer = engine_failure(502, f"Engine {engine.name} failed: {error}")
            raise EngineGoneError(answer) from error
        except Exception as error:
            _log.exception("engine %s raised an error that is not an EngineError", engine.name)
            raise engine_failure(500, f"Engine {engine.name} failed: {type(error).__name__}: {error}") from error
        if completion.finish_reason == "abort":
            raise unavailable(f"Engine {engine.name} aborted the request; send it again.", "aborted")
        _check(completion, engine.name, len(prompt_ids))
        return completion


def _trace(session_id: str, prompt_ids: TokenIds, turn: Recorded, sampled: Sampled) -> Trace:
    completion = sampled.completion
    return Trace(
        session_id=session_id,
        turn=turn.turn,
        chain=turn.chain,
        delta_ids=np.asarray(prompt_ids, np.int32)[turn.base_tokens :].copy(),
        sampled_ids=np.array(completion.token_ids, np.int32),
        logprobs=np.array(completion.logprobs, np.float32),
        weight_versions=np.array(completion.weight_versions, np.int32),
        finish_reason=completion.finish_reason,
        break_kind=turn.break_kind,
        created_s=time.time(),
        queue_s=sampled.held_s + completion.queue_s,
        prefill_s=completion.prefill_s,
        decode_s=completion.decode_s,
        cached_tokens=completion.cached_tokens,
        engine=sampled.engine,
        held_s=sampled.held_s,
        base_turn=turn.base_turn,
        base_tokens=turn.base_tokens,
        routes=_new_routes(completion, known_routes(turn.base_tokens)),
    )


def _new_routes(completion: Completion, known: int) -> Routes | None:
    """Those after the first `known` tokens. Where another call extended the chain meanwhile, so that all is new, those
    that the engine was not asked for are not known."""
    routes, missing = completion.routes, completion.routes_from - known
    if routes is None or missing <= 0:
        return None if routes is None else routes[-missing:].copy()
    padded: Any = np.pad(routes, ((missing, 0), (0, 0), (0, 0)), constant_values=unknown_route(routes.dtype))
    return padded  # type: ignore[no-any-return]


def _check(completion: Completion, engine: str, prompt_tokens: int) -> None:
    """Raises ApiError for what would poison a row."""
    sampled, logprobs = len(completion.token_ids), completion.logprobs
    if not sampled or sampled != len(logprobs) or not math.isfinite(sum(logprobs)):  # nan and inf stay in a sum
        raise engine_failure(
            502,
            f"Engine {engine} answered with {sampled} tokens and {len(logprobs)} log-probabilities, not all finite.",
        )
    new_tokens = prompt_tokens + sampled - 1 - completion.routes_from
    if completion.routes is not None and len(completion.routes) != new_tokens:
        raise engine_failure(
            502,
            f"Engine {engine} answered with the experts of {len(completion.routes)} tokens, and had read "
            f"{new_tokens} that were asked for.",
        )
