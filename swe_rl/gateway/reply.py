"""This module makes an assistant's message of a finished completion; each dialect then writes the message in its own
way.

Invariants:
- Ids of tool calls are unique in a session and follow from its turn: equal runs give equal ids, in every dialect. The
  ids of one reply differ only in their last digits.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.engine import Completion
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tool_parser import ParsedReply

# A streamed reply is finished already. It comes in pieces of this length, as clients expect deltas.
_CHUNK_CHARS = 48
# An id of a call ends with its number in the reply, in so many hexadecimal digits.
_CALL_DIGITS = 4


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Holds a finished reply. `message`, `usage` and `logprobs` have the shape of a chat completion; `finish_reason` is
    OpenAI's: stop, length or tool_calls. `name` is the session's id and the number of the call."""

    name: str
    created_s: int
    model: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]
    logprobs: dict[str, Any] | None

    @property
    def calls(self) -> Sequence[dict[str, Any]]:
        """Returns the calls of tools in the message."""
        return self.message.get("tool_calls") or ()


@dataclass(frozen=True, slots=True)
class Opening:
    """Holds what is known of a reply before it is sampled: its request was read, rendered and let in. `cached_tokens`
    counts prompt tokens that the engine had cached, if the reply is there already."""

    name: str
    created_s: int
    model: str
    prompt_tokens: int
    cached_tokens: int = 0

    @classmethod
    def of(cls, answer: ChatAnswer) -> "Opening":
        usage = answer.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return cls(answer.name, answer.created_s, answer.model, usage["prompt_tokens"], cached)


def assistant_message(parsed: ParsedReply, session_id: str, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content is not None:
        message["reasoning_content"] = parsed.reasoning_content
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        reply_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{session_id}/{number}").hex[:20]
        message["tool_calls"] = [
            {
                "id": f"call_{reply_id}{index:0{_CALL_DIGITS}x}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(parsed.tool_calls)
        ]
    return message


def of_one_reply(call_id: str, other_id: str) -> bool:
    """Tells by their ids whether two calls are in the same reply."""
    return len(call_id) > _CALL_DIGITS and call_id[:-_CALL_DIGITS] == other_id[:-_CALL_DIGITS]


def usage_of(prompt_tokens: int, completion: Completion) -> dict[str, Any]:
    sampled = len(completion.token_ids)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }


def logprobs_of(renderer: ChatRenderer, completion: Completion) -> dict[str, Any]:
    content = []
    for token_id, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
        # A character may be spread over tokens: only its bytes can be put together again.
        written = renderer.token_bytes.of(token_id)
        text = written.decode(errors="replace")
        content.append({"token": text, "logprob": logprob, "bytes": list(written), "top_logprobs": []})
    return {"content": content, "refusal": None}


def finish_reason(completion: Completion, message: dict[str, Any]) -> str:
    if completion.finish_reason == "stop" and "tool_calls" in message:
        return "tool_calls"
    return completion.finish_reason


def cut_parts(text: str) -> Sequence[str]:
    """Cuts a text into the pieces in which it is streamed."""
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]
