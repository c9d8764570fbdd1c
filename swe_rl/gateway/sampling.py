"""This module does the part of a call that needs router, engines and trace store: it places, samples, checks and keeps.

Invariants:
- If an engine dies under a request, another one answers it: nothing of the first try was recorded, and the seed is the
  same.
- An engine that fails a request which another one answers, or that fails a probe, gets no more requests for a while
  (`engine_health`). A request that two engines fail, which answer others, takes no engine down.
- A trace is in the store's hands when `record` returns; a call that failed or was aborted leaves none.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from swe_rl.algo.row import Routes
from swe_rl.engine.engine import (
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    EngineState,
    SamplingParams,
)
from swe_rl.engine.token_ids import TokenIds
from swe_rl.extension.make import ExtensionFailure
from swe_rl.gateway.chains.recall import completion_of
from swe_rl.gateway.engine_health import wrong_completion
from swe_rl.gateway.errors import ApiError, context_overflow, engine_failure, unavailable_error
from swe_rl.gateway.placement import PlacedRequest, Placement
from swe_rl.gateway.session import Recorded, TurnPlan
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace, known_routes
from swe_rl.model.experts import unknown_route

if TYPE_CHECKING:  # These are types of its arguments alone.
    from swe_rl.gateway.live import LiveSession
    from swe_rl.gateway.metrics import GatewayMetrics
    from swe_rl.gateway.waits import Waits

# A call is tried so often, on whichever engine the router gives it.
_ENGINE_TRIES = 3
# If so many engines go away under one call, the call itself may be what ends them.
_MOST_LOST = 2
# The only engine is asked again after this pause, which doubles with each try.
_PAUSE_S = 0.1
# A server may ask for a longer pause, but an agent would take its call for lost.
_LONGEST_PAUSE_S = 30.0
_log = logging.getLogger(__name__)


class EngineGoneError(Exception):
    """The engine failed before it answered. `answer` is what the client is told when no other engine takes over.

    `held_s` says how long the router had held the request by then. With `lost`, the engine's server went away under it.
    With `suspect`, two engines that answer others failed the request, so that no engine is blamed for it.
    """

    def __init__(self, answer: ApiError, engine: Engine, error: EngineError) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.engine = engine
        self.error = error
        self.held_s = 0.0
        self.lost = False
        self.suspect = False


@dataclass(frozen=True, slots=True)
class SampledReply:
    """Holds an engine's answer. `held_s` says how long the router held the request. `call` is the call's number if
    another process recorded it."""

    completion: Completion
    engine: str
    held_s: float
    call: int = 0
    recalled: bool = False  # An earlier process sampled it.


def recalled_reply(trace: Trace) -> SampledReply:
    """Returns the reply of a turn that an earlier process recorded."""
    return SampledReply(completion_of(trace), trace.engine, trace.held_s, recalled=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Describes a prompt that is to be answered: the `number`-th of its session. `waits` counts its waiting."""

    session_id: str
    group_id: str | None
    number: int
    prompt_ids: TokenIds
    params: SamplingParams
    waits: "Waits"


class Sampler(Protocol):
    async def sample(
        self, live: "LiveSession", plan: TurnPlan, params: SamplingParams, *, logprobs: bool
    ) -> SampledReply:
        """Samples the plan's reply. `logprobs` tells whether the caller looks at them. Cancelling the call aborts the
        request. Raises ApiError."""

    async def record(
        self, live: "LiveSession", plan: TurnPlan, turn: Recorded, sampled: SampledReply, started_s: float
    ) -> None:
        """Hands the turn to the store. `started_s` is when the call came. Raises TraceStoreError."""


class Sampling:
    """Samples in the process that has router, engines and store."""

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

    async def sample(
        self, live: "LiveSession", plan: TurnPlan, params: SamplingParams, *, logprobs: bool
    ) -> SampledReply:
        group_id = None
        if live.settings:
            group_id = live.settings.group_id
        return await self.answer(Wanted(live.session_id, group_id, plan.number, plan.prompt_ids, params, live.waits))

    async def record(
        self, live: "LiveSession", plan: TurnPlan, turn: Recorded, sampled: SampledReply, started_s: float
    ) -> None:
        await self.keep(live.session_id, plan.prompt_ids, turn, sampled, self._clock() - started_s)

    async def answer(self, wanted: Wanted) -> SampledReply:
        """Samples a reply, on another engine if the first one fails. Raises ApiError."""
        held_s = 0.0
        num_lost = 0
        suspect = False
        for again in range(_ENGINE_TRIES):
            try:
                return await self._answer_once(wanted, held_s, suspect)
            except EngineGoneError as gone:
                self._metrics.retries.inc()
                held_s = gone.held_s
                num_lost += gone.lost
                suspect = suspect or gone.suspect
                if again == _ENGINE_TRIES - 1 or num_lost == _MOST_LOST:
                    self._give_up(gone, suspect)
                    raise gone.answer from gone.__cause__
                await self._pause(gone.error, again, wanted.waits)
        raise AssertionError("the loop returns or raises")

    def _give_up(self, gone: EngineGoneError, suspect: bool) -> None:
        """Blames the engine, unless the request may be at fault: so the gateway's state shows what the engine does,
        also if there is no other engine."""
        health = self._placement.health
        if not (suspect or gone.error.of_request or health.other_open(gone.engine.name)):
            health.blame(gone.engine.name, str(gone.error), gone.error.retry_after_s or 0.0)

    async def _pause(self, error: EngineError, again: int, waits: "Waits") -> None:
        """Waits before an engine that has just failed is asked again. It does not wait if another engine is open."""
        if self._placement.health.any_open():
            return
        end_wait = waits.begin()
        try:
            await asyncio.sleep(min(error.retry_after_s or _PAUSE_S * 2**again, _LONGEST_PAUSE_S))
        finally:
            end_wait()

    async def keep(
        self, session_id: str, prompt_ids: TokenIds, turn: Recorded, sampled: SampledReply, call_s: float
    ) -> None:
        """Hands the trace to the store and counts the call's tokens and time. Raises TraceStoreError."""
        await self._store.append_async(_make_trace(session_id, prompt_ids, turn, sampled))
        if sampled.recalled:
            return
        completion = sampled.completion
        self._metrics.prompt_tokens.inc(len(prompt_ids))
        self._metrics.sampled_tokens.inc(len(completion.token_ids))
        self._metrics.cached_tokens.inc(completion.cached_tokens)
        self._metrics.call_s.observe(call_s)
        if turn.break_kind is not None:
            self._metrics.breaks.labels(turn.break_kind.value).inc()

    async def _answer_once(self, wanted: Wanted, held_s: float, suspect: bool) -> SampledReply:
        """Places the request once and returns the answer. With `suspect`, no second engine is asked. Raises
        EngineGoneError, ApiError."""
        session_id = wanted.session_id
        length = len(wanted.prompt_ids)
        request_id = f"{session_id}#{next(self._request_numbers)}"
        started_s = self._clock()
        end_wait = wanted.waits.begin()
        try:
            async with self._placement.place(session_id, request_id, length, wanted.group_id, wanted.number) as placed:
                end_wait()
                held_s += self._clock() - started_s
                completion, engine = await self._asked(wanted, placed, request_id, suspect)
                placed.context_tokens += len(completion.token_ids)
                if engine is placed.engine:
                    placed.cached_tokens = completion.cached_tokens
        except EngineGoneError as gone:
            gone.held_s = held_s
            raise
        except ExtensionFailure as error:
            # Only a user's own router raises this.
            raise engine_failure(500, str(error)) from error
        finally:
            end_wait()
        return SampledReply(completion, engine.name, held_s)

    async def _asked(
        self, wanted: Wanted, placed: PlacedRequest, request_id: str, suspect: bool
    ) -> tuple[Completion, Engine]:
        """Returns the completion and the engine that answered. Time in an engine's queue, and time with an engine that
        failed, counts as waited."""
        sent_s = self._clock()
        engine = placed.engine
        try:
            completion = await self._ask(wanted, engine, request_id)
        except EngineGoneError as gone:
            wanted.waits.add(sent_s, self._clock())
            if suspect:
                raise
            completion, engine = await self._asked_elsewhere(wanted, gone, request_id)
            sent_s = self._clock() - completion.decode_s - completion.prefill_s - completion.queue_s
        wanted.waits.add(sent_s, min(sent_s + completion.queue_s, self._clock()))
        return completion, engine

    async def _asked_elsewhere(
        self, wanted: Wanted, gone: EngineGoneError, request_id: str
    ) -> tuple[Completion, Engine]:
        """Asks an engine that the router did not choose, to find out whether the first engine or the request is at
        fault. Raises `gone` if the router has to choose once more."""
        health = self._placement.health
        engine = gone.engine
        error = gone.error
        if engine.state is not EngineState.up:
            gone.lost = True
            raise gone
        if error.retry_after_s is not None:
            health.blame(engine.name, str(error), error.retry_after_s)
            raise gone
        if health.is_blamed(engine.name) or health.other_open(engine.name) is None:
            raise gone
        end_wait = wanted.waits.begin()
        try:
            if not error.of_request and await health.fails_probe(engine.name):
                health.blame(engine.name, str(error))
                raise gone
        finally:
            end_wait()
        other = health.other_open(engine.name)
        if other is None:
            raise gone
        self._metrics.retries.inc()
        try:
            completion = await self._ask(wanted, other, f"{request_id}+")
        except EngineGoneError as also:
            await self._blame_request(gone, also)
            raise gone from also
        if not error.of_request:
            health.blame(engine.name, str(error))
        return completion, other

    async def _blame_request(self, gone: EngineGoneError, also: EngineGoneError) -> None:
        """Decides who is at fault after a second engine failed the request. If that engine answers a probe, as the
        first one does, it is the request."""
        health = self._placement.health
        other = also.engine
        if other.state is not EngineState.up:
            gone.lost = True
        elif not also.error.of_request and await health.fails_probe(other.name):
            health.blame(other.name, str(also.error))
        else:
            gone.suspect = True

    async def _ask(self, wanted: Wanted, engine: Engine, request_id: str) -> Completion:
        prompt_ids = wanted.prompt_ids
        try:
            completion = await engine.generate(
                prompt_ids, wanted.params, request_id=request_id, session_id=wanted.session_id
            )
        except ContextOverflowError as error:
            raise context_overflow(len(prompt_ids), self._max_model_len, f"engine {engine.name}: {error}") from error
        except EngineError as error:
            raise self._failed(engine, error) from error
        except Exception as error:
            _log.exception("engine %s raised an error that is not an EngineError", engine.name)
            raise engine_failure(500, f"Engine {engine.name} failed: {type(error).__name__}: {error}") from error
        if completion.finish_reason == "abort":
            raise unavailable_error(f"Engine {engine.name} aborted the request; send it again.", "aborted")
        try:
            _check_completion(completion, len(prompt_ids))
        except EngineError as error:
            raise self._failed(engine, error) from error
        self._placement.health.answered(engine.name, prompt_ids)
        return completion

    def _failed(self, engine: Engine, error: EngineError) -> EngineGoneError:
        self._placement.health.failures[engine.name] += 1
        return EngineGoneError(engine_failure(502, f"Engine {engine.name} failed: {error}"), engine, error)


def _make_trace(session_id: str, prompt_ids: TokenIds, turn: Recorded, sampled: SampledReply) -> Trace:
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
        role=turn.role,
        parent_turn=turn.parent_turn,
        sub_agent=turn.sub_agent,
        routes=_new_routes(completion, known_routes(turn.base_tokens)),
    )


def _new_routes(completion: Completion, known: int) -> Routes | None:
    """Returns the routes after the first `known` tokens. If another call extended the chain meanwhile, so that all
    tokens are new, the routes that the engine was not asked for are marked as unknown."""
    routes = completion.routes
    missing = completion.routes_from - known
    if routes is None or missing <= 0:
        if routes is None:
            return None
        return routes[-missing:].copy()
    padded: Any = np.pad(routes, ((missing, 0), (0, 0), (0, 0)), constant_values=unknown_route(routes.dtype))
    return padded  # type: ignore[no-any-return]


def _check_completion(completion: Completion, prompt_tokens: int) -> None:
    """Raises EngineError for a completion that would poison a row."""
    if wrong := wrong_completion(completion):
        raise EngineError(f"{wrong}.")
    new_tokens = prompt_tokens + len(completion.token_ids) - 1 - completion.routes_from
    if completion.routes is not None and len(completion.routes) != new_tokens:
        raise EngineError(
            f"it answered with the experts of {len(completion.routes)} tokens, and had read {new_tokens} that were "
            "asked for."
        )
