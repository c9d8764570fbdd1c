"""This module answers one call, from its messages to its reply: it plans, samples and records.

Invariants:
- A turn is recorded and handed to the store before its client is answered. A call that failed, was aborted or whose
  client went away leaves no trace.
- What was sampled is recorded, whatever the client sent with it: a reply that cannot be read is its own content.
- An opened session's sampling parameters are its settings; the client can only ask for fewer tokens.
- With a session's seed, the seed of a turn follows from it and the turn's number alone.
- A call reserves what it may add to the total of its session, until it is recorded or failed. So calls at once have no
  more together than one after another.
- A reply is opened once its request was rendered and has room: what is wrong with the request was said by then.
"""

import asyncio
import hashlib
import logging
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from swe_rl.engine.engine import Completion, SamplingParams
from swe_rl.gateway import reply
from swe_rl.gateway.chains.draft import Draft
from swe_rl.gateway.chains.sampled_reply import recalled_reply
from swe_rl.gateway.chains.segment import ACTS, Purpose
from swe_rl.gateway.errors import ApiError, call_limit, context_overflow, internal_failure
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.reply import ChatAnswer, Opening
from swe_rl.gateway.request import ChatRequest, too_deep
from swe_rl.gateway.session import Session, TurnPlan
from swe_rl.gateway.token_request import TokenRequest
from swe_rl.gateway.trace import Recorded, known_routes
from swe_rl.model.chat import ChatRenderer, PromptTooLongError
from swe_rl.model.tool_parser import ParsedReply, ToolParser

if TYPE_CHECKING:
    from swe_rl.gateway.sampling import Sampler

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Encoding runs at 1 to 2 MB/s. So more new text than this would hold up the event loop, and is encoded in a thread.
_LONG_CHARS = 2048
# Longer text would keep one of the few threads from all that is shorter, so it has a thread of its own.
_VERY_LONG_CHARS = 2**18
# Decoding and parsing a longer reply would hold up the event loop.
_LONG_TOKENS = 2048


class AnswersCalls(Protocol):
    """Answers the calls of sessions: with the tokens of engines, or with what an endpoint says."""

    async def complete(
        self, live: LiveSession, request: ChatRequest, opened: "asyncio.Future[Opening] | None" = None
    ) -> ChatAnswer:
        """Answers a chat request. `opened` is set before the reply is sampled. Raises ApiError."""

    async def count(self, state: Session, request: ChatRequest) -> int:
        """Counts the tokens of a request's prompt. Raises ApiError."""

    async def complete_ids(self, live: LiveSession, request: TokenRequest) -> Completion:
        """Answers a request that brings token ids. Raises ApiError."""


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
        self._very_long = ThreadPoolExecutor(1, "very_long_prompts")

    async def complete(
        self, live: LiveSession, request: ChatRequest, opened: "asyncio.Future[Opening] | None" = None
    ) -> ChatAnswer:
        """Answers a chat request. `opened` is set before the reply is sampled. Cancelling the call aborts the engine's
        request. Raises ApiError, TraceStoreError."""
        started_s = self._clock()
        limit, key = token_limit(live, self._max_model_len)
        try:
            purpose = purpose_of(live, request)
            rendered = await self._rendered(live.state, request, purpose.agent, limit - 1)
            plan = live.state.plan(*rendered, purpose)
        except RecursionError as error:
            raise too_deep() from error
        except PromptTooLongError as error:
            refusal = context_overflow(error.tokens, limit, key, at_least=True)
            live.refuse(refusal)
            raise refusal from None
        recorded = False
        reserved_tokens = 0
        try:
            params = await self._params(live, plan, request)
            reserved_tokens = max(0, plan.added_tokens + params.max_tokens)
            live.reserved_tokens += reserved_tokens
            params = replace(params, routes_from=known_routes(plan.base_tokens))
            opening = Opening(
                f"{live.session_id}-{plan.number}", int(time.time()), self._model_name, len(plan.prompt_ids)
            )
            if opened is not None and not opened.done():
                opened.set_result(opening)
            recorded_turn = live.recall.take(plan.prompt_ids) if live.recall is not None else None
            if recorded_turn is None:
                sampled = await self._sampler.sample(live, plan, params, logprobs=request.logprobs)
            else:
                sampled = recalled_reply(recorded_turn)
            completion = sampled.completion
            message, turn = await self._recorded(live, plan, request, completion)
            live.total_tokens += turn.added_tokens + len(completion.token_ids)
            recorded = True
        except Exception as error:
            live.refuse(error if isinstance(error, ApiError) else internal_failure(error))
            raise
        finally:
            give_back_room(live, reserved_tokens)
            if not recorded:
                live.state.release(plan)
        live.count(turn, completion, sampled.held_s)
        live.noted(request.notes, done=bool(request.tools) and not message.get("tool_calls"))
        await self._sampler.record(live, plan, turn, sampled, started_s)
        return self._answer(opening, request, completion, message)

    async def count(self, state: Session, request: ChatRequest) -> int:
        """Counts the tokens of the prompt that this request would have now. Raises ApiError."""
        draft = state.draft(request.conversation)
        try:
            if self._renderer.rewrites:
                draft = await self._in_thread(draft, partial(draft.settled, self._renderer))
            return state.tokens_before(draft) + await self._in_thread(draft, partial(draft.count, self._renderer))
        except RecursionError as error:
            raise too_deep() from error

    async def complete_ids(self, live: LiveSession, request: TokenRequest) -> Completion:
        """Answers a request that brings token ids. Cancelling the call aborts the engine's request. Raises ApiError,
        TraceStoreError."""
        started_s = self._clock()
        limit = self._max_model_len
        room = limit - len(request.prompt_ids)
        if room <= 0:
            raise context_overflow(len(request.prompt_ids), limit, "engine.max_model_len")
        params = replace(request.params, max_tokens=min(room, request.params.max_tokens))
        plan = live.state.plan_apart(request.prompt_ids)
        recorded = False
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

    async def _rendered(
        self, state: Session, request: ChatRequest, agent: int, most_tokens: int
    ) -> tuple[Draft, "array[int]"]:
        """Drafts the request of an agent and renders its new ids. Raises PromptTooLongError for a prompt of more than
        `most_tokens`, RecursionError."""
        draft = state.draft(request.conversation, agent)
        if self._renderer.rewrites:
            draft = await self._in_thread(draft, partial(draft.settled, self._renderer))
        before_tokens = state.tokens_before(draft)
        try:
            render = partial(draft.render, self._renderer, most_tokens - before_tokens)
            return draft, await self._in_thread(draft, render)
        except PromptTooLongError as error:
            raise PromptTooLongError(before_tokens + error.tokens) from None

    async def _in_thread(self, draft: Draft, work: Callable[[], T]) -> T:
        """Does the work in a thread, or at once if the draft is short."""
        if not draft.has_new_chars(_LONG_CHARS):
            return work()
        very_long = draft.has_new_chars(_VERY_LONG_CHARS)
        return await asyncio.get_running_loop().run_in_executor(self._very_long if very_long else None, work)

    async def _params(self, live: LiveSession, plan: TurnPlan, request: ChatRequest) -> SamplingParams:
        """Returns the sampling of a turn, once there is room for it. Raises ApiError if the session may have none."""
        check_calls(live, plan)
        limit, key = token_limit(live, self._max_model_len)
        tokens = len(plan.prompt_ids)
        opening = None
        if live.settings is not None and plan.first:
            opening = live.settings.max_prompt_tokens
        if opening is not None and tokens > opening:
            raise context_overflow(tokens, opening, "rollout.max_prompt_tokens")
        room = limit - tokens
        if room <= 0:
            raise context_overflow(tokens, limit, key)
        wanted = await room_in_total(live, plan.added_tokens, wanted_tokens(live, request, room))
        return sampling_params(live, plan, request, wanted, self._renderer.stop_token_ids)

    async def _recorded(
        self, live: LiveSession, plan: TurnPlan, request: ChatRequest, completion: Completion
    ) -> tuple[dict[str, object], Recorded]:
        ids = completion.token_ids

        def read() -> ParsedReply:
            return self._parse(self._renderer.decode(ids), request.tools if request.calls else [])

        def kept(parsed: ParsedReply) -> tuple[dict[str, object], Recorded]:
            message = reply.assistant_message(parsed, live.session_id, plan.number)
            return message, live.state.record(plan, completion.token_ids, message)

        try:
            return kept(read() if len(completion.token_ids) < _LONG_TOKENS else await asyncio.to_thread(read))
        except Exception:
            _log.exception("a reply is recorded as plain text, as it cannot be read with the tools of its request")
            return kept(ParsedReply(self._renderer.decode(ids)))

    def _answer(
        self, opening: Opening, request: ChatRequest, completion: Completion, message: dict[str, object]
    ) -> ChatAnswer:
        return ChatAnswer(
            name=opening.name,
            created_s=opening.created_s,
            model=opening.model,
            message=message,
            finish_reason=reply.finish_reason(completion, message),
            usage=reply.usage_of(opening.prompt_tokens, completion),
            logprobs=reply.logprobs_of(self._renderer, completion) if request.logprobs else None,
        )


def purpose_of(live: LiveSession, request: ChatRequest) -> Purpose:
    """Returns what the call says that it is for, if its session's agent is believed."""
    if live.settings is not None and live.settings.has_segments:
        return request.purpose
    return ACTS


def token_limit(live: LiveSession, max_model_len: int) -> tuple[int, str]:
    """Returns the limit of prompt and reply together, in tokens, and the key that sets it."""
    pinned = live.settings
    if pinned is not None and pinned.max_trajectory_tokens < max_model_len:
        return pinned.max_trajectory_tokens, "rollout.max_trajectory_tokens"
    return max_model_len, "engine.max_model_len"


def check_calls(live: LiveSession, plan: TurnPlan) -> None:
    """Raises ApiError if the session has had all its calls."""
    pinned = live.settings
    if pinned is not None and pinned.max_calls is not None and plan.number >= pinned.max_calls:
        raise call_limit(pinned.max_calls)


def wanted_tokens(live: LiveSession, request: ChatRequest, room: int) -> int:
    """Returns how many of `room` tokens a turn may sample: as many as the session and the client allow."""
    wanted = min(room, request.max_tokens or room)
    if live.settings is None:
        return wanted
    return min(wanted, live.settings.max_turn_tokens)


def sampling_params(
    live: LiveSession, plan: TurnPlan, request: ChatRequest, max_tokens: int, stops: tuple[int, ...] = ()
) -> SamplingParams:
    """Returns the sampling of a turn: as the session pins it, or else as the client asks."""
    pinned = live.settings
    if pinned is None:
        return SamplingParams(max_tokens, request.temperature, request.top_p, request.top_k, stops, request.seed)
    if pinned.seed is None:
        seed = None
    else:
        seed = turn_seed(pinned.seed, plan.number)
    return SamplingParams(max_tokens, pinned.temperature, pinned.top_p, pinned.top_k, stops, seed, min_p=pinned.min_p)


async def room_in_total(live: LiveSession, new_tokens: int, wanted: int) -> int:
    """Returns how many of `wanted` tokens a session may still sample after `new_tokens` of a prompt.

    Calls in flight give back what they do not use. So a call that would get less than it wants waits for their ends,
    and gets what it would have got after them. Raises ApiError if that is none.
    """
    pinned = live.settings
    if pinned is None or not pinned.max_total_tokens:
        return wanted
    limit = pinned.max_total_tokens
    while live.total_tokens + new_tokens < limit < live.total_tokens + live.reserved_tokens + new_tokens + wanted:
        if not live.reserved_tokens:
            break
        await live.given_back.wait()
    used_tokens = live.total_tokens + live.reserved_tokens + new_tokens
    if used_tokens >= limit:
        raise context_overflow(used_tokens, limit, "rollout.max_total_tokens")
    return min(wanted, limit - used_tokens)


def give_back_room(live: LiveSession, tokens: int) -> None:
    """Ends the reservation of a call, and wakes the calls that wait for room."""
    live.reserved_tokens -= tokens
    live.given_back.set()
    live.given_back = asyncio.Event()


def turn_seed(seed: int, number: int) -> int:
    """Derives a turn's seed from the session's. Its 63 bits fit a signed 64-bit integer of any engine."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
