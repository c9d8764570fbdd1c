"""A finished completion as OpenAI's chat completion, whole or in chunks.

Invariants:
- The chunks of a stream add up to the message of the plain answer.
- Ids of tool calls are unique in a session and follow from its turn: equal runs give equal ids.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.protocol import Completion
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tool_parser import ParsedReply

_CHUNK_CHARS = 48


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """`finish_reason` is OpenAI's: stop, length or tool_calls."""

    reply_id: str
    created_s: int
    model: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]
    logprobs: dict[str, Any] | None


def assistant_message(parsed: ParsedReply, session_id: str, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content is not None:
        message["reasoning_content"] = parsed.reasoning_content
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid5(uuid.NAMESPACE_URL, f'{session_id}/{number}/{index}').hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(parsed.tool_calls)
        ]
    return message


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


def whole(answer: ChatAnswer) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": answer.message,
        "finish_reason": answer.finish_reason,
        "logprobs": answer.logprobs,
    }
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": answer.usage}


def chunks(answer: ChatAnswer, include_usage: bool) -> Iterator[dict[str, Any]]:
    """With `include_usage` the usage has a last chunk of its own, as OpenAI sends it; else it rides on the end."""
    head = _head(answer, "chat.completion.chunk")
    deltas = list(_deltas(answer.message))
    for index, delta in enumerate(deltas):
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        if index == 0 and answer.logprobs is not None:
            choice["logprobs"] = answer.logprobs
        yield {**head, "choices": [choice]}
    end = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason}
    if not include_usage:
        yield {**head, "choices": [end], "usage": answer.usage}
        return
    yield {**head, "choices": [end]}
    yield {**head, "choices": [], "usage": answer.usage}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for part in _parts(message.get("reasoning_content") or ""):
        yield {"reasoning_content": part}
    for part in _parts(message.get("content") or ""):
        yield {"content": part}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        for part in _parts(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _parts(text: str) -> Sequence[str]:
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]


def _head(answer: ChatAnswer, kind: str) -> dict[str, Any]:
    return {"id": answer.reply_id, "object": kind, "created": answer.created_s, "model": answer.model}
