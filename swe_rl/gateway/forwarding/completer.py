"""Answers the calls of agents with an endpoint's replies: what `gateway/completion.py` does, without tokens.

Invariants:
- A call costs at most what the session may have: its number of replies, the tokens of a turn, and those of the
  trajectory as far as the endpoint has counted them. What the next prompt adds, only the endpoint's answer tells.
- Each token counts once in the total of the session: that of a prompt where it is new, and all that was sampled, also
  reasoning that later prompts are without.
- An opened session's sampling parameters are its settings, as with any engine.
- The endpoint's errors are the gateway's to the agent (status 502). They never count as the agent's.
- Nor does the endpoint's time: nobody can tell how much of it a call stood in a queue, or hung. All of it is a wait.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.endpoint.question import EndpointReply, Question, Usage
from swe_rl.engine.engine import Completion, ContextOverflowError, EngineError, SamplingParams
from swe_rl.gateway.completion import (
    check_calls,
    give_back_room,
    purpose_of,
    room_in_total,
    sampling_params,
    token_limit,
    wanted_tokens,
)
from swe_rl.gateway.conversation import extend_hash
from swe_rl.gateway.errors import ApiError, context_overflow, engine_failure, internal_failure
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.reply import ChatAnswer, Opening, assistant_message
from swe_rl.gateway.request import ChatRequest
from swe_rl.gateway.session import Session, TurnPlan
from swe_rl.gateway.token_request import TokenRequest

if TYPE_CHECKING:
    import asyncio

    from swe_rl.gateway.metrics import GatewayMetrics

# A call of an unknown conversation counts a token for so many characters, where somebody asks for a count alone.
_CHARS_PER_TOKEN = 4


class ForwardingCompleter:
    """Answers calls by one endpoint. `max_model_len` limits a conversation."""

    def __init__(
        self,
        endpoint: EndpointEngine,
        metrics: "GatewayMetrics",
        *,
        model_name: str,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._metrics = metrics
        self._model_name = model_name
        self._most_tokens = max_model_len
        self._clock = clock

    async def complete(
        self, live: LiveSession, request: ChatRequest, opened: "asyncio.Future[Opening] | None" = None
    ) -> ChatAnswer:
        """Answers a chat request. `opened` is set before the endpoint is asked. Raises ApiError, DiskError."""
        began_s = self._clock()
        plan = live.state.plan_apart(())
        recorded = False
        reserved_tokens = 0
        try:
            hashes = request.conversation.hashes
            purpose = purpose_of(live, request)
            before_tokens = live.counted.usage_before(hashes, purpose).tokens
            params = await self._params(live, plan, request, before_tokens)
            reserved_tokens = params.max_tokens
            live.reserved_tokens += reserved_tokens
            opening = Opening(f"{live.session_id}-{plan.number}", int(time.time()), self._model_name, before_tokens)
            if opened is not None and not opened.done():
                opened.set_result(opening)
            messages = request.conversation.since(0)
            question = Question(messages, params, request.tools, request.calls)
            reply, usage = await self._asked(live, question)
            message = assistant_message(reply.parsed, live.session_id, plan.number)
            live.state.record_apart()
            recorded = True
        except Exception as error:
            live.refuse(error if isinstance(error, ApiError) else internal_failure(error))
            raise
        finally:
            give_back_room(live, reserved_tokens)
            if not recorded:
                live.state.release(plan)
        live.total_tokens += live.counted.note(hashes, purpose, extend_hash(hashes[-1], message), usage)
        took_s = self._clock() - began_s
        live.count_reply(usage.sampled_tokens, was_cut=reply.was_cut, spent_s={"decode": took_s})
        live.noted(request.notes, done=bool(request.tools) and not message.get("tool_calls"))
        self._count(usage, took_s)
        return _answer(opening, reply, usage, message)

    async def count(self, state: Session, request: ChatRequest) -> int:
        """Estimates the tokens of a prompt by the length of its texts: only the endpoint has a tokenizer."""
        return len(str([*request.conversation.since(0), *request.tools])) // _CHARS_PER_TOKEN

    async def complete_ids(self, live: LiveSession, request: TokenRequest) -> Completion:
        """Raises ApiError: an endpoint takes text alone."""
        raise ApiError(400, "This gateway forwards to an endpoint, which takes no token ids.", code="no_token_ids")

    async def _asked(self, live: LiveSession, question: Question) -> tuple[EndpointReply, Usage]:
        end_wait = live.waits.begin()
        try:
            return await self._endpoint.ask(question, live.session_id)
        except ContextOverflowError as error:
            limit = self._most_tokens
            raise context_overflow(limit, limit, f"the endpoint: {error}", at_least=True) from error
        except EngineError as error:
            raise engine_failure(502, f"The endpoint failed: {error}") from error
        finally:
            end_wait()

    async def _params(
        self, live: LiveSession, plan: TurnPlan, request: ChatRequest, before_tokens: int
    ) -> SamplingParams:
        """Returns the sampling of a turn, once there is room for it. Raises ApiError if the session may have none."""
        check_calls(live, plan)
        limit, key = token_limit(live, self._most_tokens)
        room = limit - before_tokens
        if room <= 0:
            raise context_overflow(before_tokens, limit, key)
        # The endpoint tells how long the prompt is with its reply, so that only what was there before is known here.
        wanted = await room_in_total(live, 0, wanted_tokens(live, request, room))
        return sampling_params(live, plan, request, wanted)

    def _count(self, usage: Usage, took_s: float) -> None:
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.sampled_tokens.inc(usage.sampled_tokens)
        self._metrics.cached_tokens.inc(usage.cached_tokens)
        self._metrics.call_s.observe(took_s)


def _answer(opening: Opening, reply: EndpointReply, usage: Usage, message: dict[str, Any]) -> ChatAnswer:
    reason = "stop"
    if "tool_calls" in message:
        reason = "tool_calls"
    return ChatAnswer(
        name=opening.name,
        created_s=opening.created_s,
        model=opening.model,
        message=message,
        finish_reason="length" if reply.was_cut else reason,
        usage={
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.sampled_tokens,
            "total_tokens": usage.tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        logprobs=None,
    )
