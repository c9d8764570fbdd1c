"""One call, from its messages to its answer: plan, place, generate, record, store.

Invariants:
- A turn is recorded and handed to the store before its client is answered; a call that failed, was aborted or whose
  client went away leaves no trace.
- An opened session's sampling parameters are its settings; the client can only ask for fewer tokens.
- With a session's seed, the seed of a turn follows from it and the turn's number alone.
"""

import asyncio
import hashlib
import logging
import math
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np

from swe_rl.engine.protocol import Completion, ContextOverflowError, EngineError, SamplingParams
from swe_rl.extension.make import ExtensionFailure
from swe_rl.gateway import reply
from swe_rl.gateway.errors import CONTEXT_OVERFLOW, ApiError, context_overflow, engine_failure, unavailable
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placed, Placement
from swe_rl.gateway.reply import ChatAnswer
from swe_rl.gateway.request import ChatRequest, too_deep
from swe_rl.gateway.session import Draft, Recorded, Session, TurnPlan
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.token_request import TokenRequest
from swe_rl.gateway.trace import Trace
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tool_parser import ParsedReply, ToolParser

_ENGINE_TRIES = 3  # of one call, on whichever engine the router gives it
_LONG_CHARS = 2048  # of new text: from here on encoding it (1 to 2 MB/s) would hold up the event loop
_LONG_TOKENS = 2048  # of a reply: from here on decoding and parsing it would
_log = logging.getLogger(__name__)


class EngineGoneError(Exception):
    """The engine failed before it answered; `answer` is what the client is told when no other one takes over."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(str(answer))
        self.answer = answer


class Completer:
    def __init__(
        self,
        placement: Placement,
        renderer: ChatRenderer,
        store: TraceStore,
        metrics: GatewayMetrics,
        *,
        model_name: str,
        max_model_len: int,
        parse: ToolParser,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._placement = placement
        self._renderer = renderer
        self._store = store
        self._metrics = metrics
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._parse = parse
        self._clock = clock
        self._request_numbers = count()

    async def complete(self, live: LiveSession, request: ChatRequest) -> ChatAnswer:
        """Raises ApiError, TraceStoreError. Cancelling it aborts the engine's request."""
        started_s = self._clock()
        try:
            plan = await self._plan(live, request)
        except RecursionError as error:
            raise too_deep() from error
        recorded = False
        try:
            completion, engine, held_s = await self._generate(live, plan, self._params(live, plan, request))
            message = await self._message(live, plan, request, completion)
            turn = live.state.record(plan, completion.token_ids, message)
            recorded = True
        except ApiError as error:
            live.overflowed = error.code == CONTEXT_OVERFLOW
            if error.status >= 500:
                live.waits.refused()  # not the client's fault: it backs off and comes again
            raise
        finally:
            if not recorded:
                live.state.release(plan)
        live.count(turn, completion, held_s)
        trace = self._trace(live, plan, turn, completion, engine, held_s)
        await self._store.append_async(trace)
        self._count(plan, turn, completion, started_s)
        return self._answer(live, plan, turn, request, completion, message)

    async def count(self, state: Session, request: ChatRequest) -> int:
        """Tokens of the prompt that this request would have now. Raises ApiError."""
        try:
            draft, delta_ids = await self._rendered(state, request)
        except RecursionError as error:
            raise too_deep() from error
        return state.prompt_tokens(draft, delta_ids)

    async def complete_ids(self, live: LiveSession, request: TokenRequest) -> Completion:
        """Of token ids that a client brings; as `complete`."""
        started_s, limit = self._clock(), self._max_model_len
        room = limit - len(request.prompt_ids)
        if room <= 0:
            raise context_overflow(len(request.prompt_ids), limit, "engine.max_model_len")
        params = replace(request.params, max_tokens=min(room, request.params.max_tokens))
        plan, recorded = live.state.plan_apart(request.prompt_ids), False
        try:
            completion, engine, held_s = await self._generate(live, plan, params)
            turn = live.state.record_apart()
            recorded = True
        finally:
            if not recorded:
                live.state.release(plan)
        live.count(turn, completion, held_s)
        await self._store.append_async(self._trace(live, plan, turn, completion, engine, held_s))
        self._count(plan, turn, completion, started_s)
        return completion

    async def _plan(self, live: LiveSession, request: ChatRequest) -> TurnPlan:
        return live.state.plan(*await self._rendered(live.state, request))

    async def _rendered(self, state: Session, request: ChatRequest) -> tuple[Draft, "array[int]"]:
        draft = state.draft(request.conversation)
        if draft.new_chars < _LONG_CHARS:
            return draft, draft.render(self._renderer)
        return draft, await asyncio.to_thread(draft.render, self._renderer)

    def _params(self, live: LiveSession, plan: TurnPlan, request: ChatRequest) -> SamplingParams:
        pinned, limit, key = live.settings, self._max_model_len, "engine.max_model_len"
        if pinned is not None and pinned.max_trajectory_tokens < limit:
            limit, key = pinned.max_trajectory_tokens, "rollout.max_trajectory_tokens"
        tokens, opening = len(plan.prompt_ids), pinned.max_prompt_tokens if pinned is not None and plan.first else None
        if opening is not None and tokens > opening:
            raise context_overflow(tokens, opening, "rollout.max_prompt_tokens")
        room = limit - tokens
        if room <= 0:
            raise context_overflow(tokens, limit, key)
        wanted = min(room, request.max_tokens or room)
        stops = self._renderer.stop_token_ids
        if pinned is None:
            return SamplingParams(wanted, request.temperature, request.top_p, request.top_k, stops, request.seed)
        seed = None if pinned.seed is None else turn_seed(pinned.seed, plan.number)
        wanted = min(wanted, pinned.max_turn_tokens)
        return SamplingParams(wanted, pinned.temperature, pinned.top_p, pinned.top_k, stops, seed)

    async def _generate(
        self, live: LiveSession, plan: TurnPlan, params: SamplingParams
    ) -> tuple[Completion, str, float]:
        """The completion, its engine's name, and for how long the router held the request.

        What an engine that died left undone another one does: nothing of it was recorded, and its seed is the same.
        """
        held_s = 0.0
        for again in range(_ENGINE_TRIES):
            try:
                return await self._generate_once(live, plan, params, held_s)
            except EngineGoneError as gone:
                self._metrics.retries.inc()
                if again == _ENGINE_TRIES - 1:
                    raise gone.answer from gone.__cause__
        raise AssertionError("the loop returns or raises")

    async def _generate_once(
        self, live: LiveSession, plan: TurnPlan, params: SamplingParams, held_s: float
    ) -> tuple[Completion, str, float]:
        request_id = f"{live.session_id}#{next(self._request_numbers)}"
        group_id = live.settings.group_id if live.settings else None
        started_s, end_wait = self._clock(), live.waits.begin()
        length = len(plan.prompt_ids)
        try:
            async with self._placement.place(live.session_id, request_id, length, group_id, plan.number) as placed:
                end_wait()
                held_s += self._clock() - started_s
                completion = await self._asked(live, placed, plan, params, request_id)
                placed.context_tokens += len(completion.token_ids)
                placed.cached_tokens = completion.cached_tokens
        except ExtensionFailure as error:  # of a router of somebody's own
            raise engine_failure(500, str(error)) from error
        finally:
            end_wait()
        return completion, placed.engine.name, held_s

    async def _asked(
        self, live: LiveSession, placed: Placed, plan: TurnPlan, params: SamplingParams, request_id: str
    ) -> Completion:
        """As `_ask`; what was queued there, or came to nothing with the engine, was waited."""
        sent_s = self._clock()
        try:
            completion = await self._ask(placed, plan, params, request_id, live.session_id)
        except EngineGoneError:
            live.waits.add(sent_s, self._clock())
            raise
        live.waits.add(sent_s, min(sent_s + completion.queue_s, self._clock()))
        return completion

    async def _ask(
        self, placed: Placed, plan: TurnPlan, params: SamplingParams, request_id: str, session_id: str
    ) -> Completion:
        engine = placed.engine
        try:
            completion = await engine.generate(plan.prompt_ids, params, request_id=request_id, session_id=session_id)
        except ContextOverflowError as error:
            raise context_overflow(
                len(plan.prompt_ids), self._max_model_len, f"engine {engine.name}: {error}"
            ) from error
        except EngineError as error:
            answer = engine_failure(502, f"Engine {engine.name} failed: {error}")
            raise EngineGoneError(answer) from error
        except Exception as error:
            _log.exception("engine %s raised an error that is not an EngineError", engine.name)
            raise engine_failure(500, f"Engine {engine.name} failed: {type(error).__name__}: {error}") from error
        if completion.finish_reason == "abort":
            raise unavailable(f"Engine {engine.name} aborted the request; send it again.", "aborted")
        _check(completion, engine.name, len(plan.prompt_ids))
        return completion

    async def _message(
        self, live: LiveSession, plan: TurnPlan, request: ChatRequest, completion: Completion
    ) -> dict[str, object]:
        if len(completion.token_ids) < _LONG_TOKENS:
            parsed = self._parsed(completion, request)
        else:
            parsed = await asyncio.to_thread(self._parsed, completion, request)
        return reply.assistant_message(parsed, live.session_id, plan.number)

    def _parsed(self, completion: Completion, request: ChatRequest) -> ParsedReply:
        return self._parse(self._renderer.decode(completion.token_ids), request.tools)

    def _trace(
        self, live: LiveSession, plan: TurnPlan, turn: Recorded, completion: Completion, engine: str, held_s: float
    ) -> Trace:
        return Trace(
            session_id=live.session_id,
            turn=turn.turn,
            chain=turn.chain,
            delta_ids=np.asarray(plan.prompt_ids, np.int32)[turn.base_tokens :].copy(),
            sampled_ids=np.array(completion.token_ids, np.int32),
            logprobs=np.array(completion.logprobs, np.float32),
            weight_versions=np.array(completion.weight_versions, np.int32),
            finish_reason=completion.finish_reason,
            break_kind=turn.break_kind,
            created_s=time.time(),
            queue_s=held_s + completion.queue_s,
            prefill_s=completion.prefill_s,
            decode_s=completion.decode_s,
            cached_tokens=completion.cached_tokens,
            engine=engine,
            held_s=held_s,
            base_turn=turn.base_turn,
            base_tokens=turn.base_tokens,
            routes=None if completion.routes is None else completion.routes[max(0, turn.base_tokens - 1) :].copy(),
        )

    def _answer(
        self,
        live: LiveSession,
        plan: TurnPlan,
        turn: Recorded,
        request: ChatRequest,
        completion: Completion,
        message: dict[str, object],
    ) -> ChatAnswer:
        return ChatAnswer(
            name=f"{live.session_id}-{turn.turn}",
            created_s=int(time.time()),
            model=self._model_name,
            message=message,
            finish_reason=reply.finish_reason(completion, message),
            usage=reply.usage(len(plan.prompt_ids), completion),
            logprobs=reply.logprobs(self._renderer, completion) if request.logprobs else None,
        )

    def _count(self, plan: TurnPlan, turn: Recorded, completion: Completion, started_s: float) -> None:
        self._metrics.prompt_tokens.inc(len(plan.prompt_ids))
        self._metrics.sampled_tokens.inc(len(completion.token_ids))
        self._metrics.cached_tokens.inc(completion.cached_tokens)
        self._metrics.call_s.observe(self._clock() - started_s)
        if turn.break_kind is not None:
            self._metrics.breaks.labels(turn.break_kind.value).inc()


def turn_seed(seed: int, number: int) -> int:
    """63 bits: fits a signed 64-bit integer of any engine."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _check(completion: Completion, engine: str, prompt_tokens: int) -> None:
    """Raises ApiError for what would poison a row."""
    sampled, logprobs = len(completion.token_ids), completion.logprobs
    if not sampled or sampled != len(logprobs) or not math.isfinite(sum(logprobs)):  # nan and inf stay in a sum
        raise engine_failure(
            502,
            f"Engine {engine} answered with {sampled} tokens and {len(logprobs)} log-probabilities, not all finite.",
        )
    if completion.routes is not None and len(completion.routes) != prompt_tokens + sampled - 1:
        raise engine_failure(
            502,
            f"Engine {engine} answered with the experts of {len(completion.routes)} tokens, and had read "
            f"{prompt_tokens + sampled - 1}.",
        )
