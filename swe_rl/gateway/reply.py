"""A finished completion as an assistant's message; each dialect writes it in its own way.

Invariants:
- Ids of tool calls are unique in a session and follow from its turn: equal runs give equal ids, in every dialect.
  Those of one reply are alike but for their end.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.protocol import Completion
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tool_parser import ParsedReply

_CHUNK_CHARS = 48
_CALL_DIGITS = 4


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """`message`, `usage` and `logprobs` are in the shape of a chat completion; `finish_reason` is OpenAI's: stop,
    length or tool_calls. `name` is the session's id and the turn."""

    name: str
    created_s: int
    model: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]
    logprobs: dict[str, Any] | None

    @property
    def calls(self) -> Sequence[dict[str, Any]]:
        """Of tools."""
        return self.message.get("tool_calls") or ()


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
    """Whether these calls are, by their ids."""
    return len(call_id) > _CALL_DIGITS and call_id[:-_CALL_DIGITS] == other_id[:-_CALL_DIGITS]


def usage(prompt_tokens: int, completion: Completion) -> dict[str, Any]:
    sampled = len(completion.token_ids)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }


def logprobs(renderer: ChatRenderer, completion: Completion) -> dict[str, Any]:
    content = []
    for token_id, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
        text = renderer.token_text(token_id)
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}


def finish_reason(completion: Completion, message: dict[str, Any]) -> str:
    return "tool_calls" if completion.finish_reason == "stop" and "tool_calls" in message else completion.finish_reason


def parts(text: str) -> Sequence[str]:
    """Of a text that is streamed."""
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]
