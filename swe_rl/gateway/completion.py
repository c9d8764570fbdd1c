"""One call, from its messages to its answer: plan, sample, record.

Invariants:
- A turn is recorded and handed to the store before its client is answered; a call that failed, was aborted or whose
  client went away leaves no trace.
- What was sampled is recorded, whatever the client sent with it: a reply that cannot be read is its own content.
- An opened session's sampling parameters are its settings; the client can only ask for fewer tokens.
- With a session's seed, the seed of a turn follows from it and the turn's number alone.
"""

import asyncio
import hashlib
import logging
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from swe_rl.engine.protocol import Completion, SamplingParams
from swe_rl.gateway import reply
from swe_rl.gateway.errors import ApiError, call_limit, context_overflow, internal_failure
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.reply import ChatAnswer
from swe_rl.gateway.request import ChatRequest, too_deep
from swe_rl.gateway.session import Draft, Recorded, Session, TurnPlan
from swe_rl.gateway.token_request import TokenRequest
from swe_rl.gateway.trace import known_routes
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tool_parser import ParsedReply, ToolParser

if TYPE_CHECKING:
    from swe_rl.gateway.sampling import Sampler

_log = logging.getLogger(__name__)
_LONG_CHARS = 2048  # of new text: from here on encoding it (1 to 2 MB/s) would hold up the event loop
_LONG_TOKENS = 2048  # of a reply: from here on decoding and parsing it would


class Completer:
    def __init__(
        self,
        sampler: "Sampler",
        renderer: ChatRenderer,
        *,
        model_name: str,
        max_model_len: int,
        parse: ToolParser,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._parse = parse
        self._clock = clock

    async def complete(self, live: LiveSession, request: ChatRequest) -> ChatAnswer:
        """Raises ApiError, TraceStoreError. Cancelling it aborts the engine's request."""
        started_s = self._clock()
        try:
            plan = live.state.plan(*await self._rendered(live.state, request))
        except RecursionError as error:
            raise too_deep() from error
        recorded = False
        try:
            params = self._params(live, plan, request)
            params = replace(params, routes_from=known_routes(plan.base_tokens))
            sampled = await self._sampler.sample(live, plan, params, logprobs=request.logprobs)
            completion = sampled.completion
            message, turn = await self._recorded(live, plan, request, completion)
            recorded = True
        except Exception as error:
            live.refuse(error if isinstance(error, ApiError) else internal_failure(error))
            raise
        finally:
            if not recorded:
                live.state.release(plan)
        live.count(turn, completion, sampled.held_s)
        await self._sampler.record(live, plan, turn, sampled, started_s)
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
            sampled = await self._sampler.sample(live, plan, params, logprobs=True)
            turn = live.state.record_apart()
            recorded = True
        finally:
            if not recorded:
                live.state.release(plan)
        live.count(turn, sampled.completion, sampled.held_s)
        await self._sampler.record(live, plan, turn, sampled, started_s)
        return sampled.completion

    async def _rendered(self, state: Session, request: ChatRequest) -> tuple[Draft, "array[int]"]:
        draft = state.draft(request.conversation)
        if draft.new_chars < _LONG_CHARS:
            return draft, draft.render(self._renderer)
        return draft, await asyncio.to_thread(draft.render, self._renderer)

    def _params(self, live: LiveSession, plan: TurnPlan, request: ChatRequest) -> SamplingParams:
        pinned, limit, key = live.settings, self._max_model_len, "engine.max_model_len"
        if pinned is not None and pinned.max_calls is not None and plan.number >= pinned.max_calls:
            raise call_limit(pinned.max_calls)
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
        wanted = min(wanted, max(1, pinned.max_turn_tokens - len(plan.begun_ids)))
        return SamplingParams(wanted, pinned.temperature, pinned.top_p, pinned.top_k, stops, seed)

    async def _recorded(
        self, live: LiveSession, plan: TurnPlan, request: ChatRequest, completion: Completion
    ) -> tuple[dict[str, object], Recorded]:
        ids = (*plan.begun_ids, *completion.token_ids)

        def read() -> ParsedReply:
            return self._parse(self._renderer.decode(ids), request.tools)

        def kept(parsed: ParsedReply) -> tuple[dict[str, object], Recorded]:
            message = reply.assistant_message(parsed, live.session_id, plan.number)
            return message, live.state.record(plan, completion.token_ids, message)

        try:
            return kept(read() if len(completion.token_ids) < _LONG_TOKENS else await asyncio.to_thread(read))
        except Exception:
            _log.exception("a reply is recorded as plain text, as it cannot be read with the tools of its request")
            return kept(ParsedReply(self._renderer.decode(ids)))

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


def turn_seed(seed: int, number: int) -> int:
    """63 bits: fits a signed 64-bit integer of any engine."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
