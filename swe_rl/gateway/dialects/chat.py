"""OpenAI's chat completions.

Invariants:
- Refused by name: n > 1, stop strings, top_logprobs, images, response formats other than text, a forced tool choice.
- What a client sends again is compared byte by byte (`gateway/conversation.py`): a call costs what is new.
- https://platform.openai.com/docs/api-reference/chat
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from swe_rl.gateway.conversation import Body, Conversation, Sent
from swe_rl.gateway.dialects.protocol import Dialect, event
from swe_rl.gateway.errors import ApiError, invalid
from swe_rl.gateway.reply import ChatAnswer, parts
from swe_rl.gateway.request import (
    ROLES,
    Arrived,
    ChatRequest,
    check_model,
    flag,
    integer,
    number,
    program_of,
    read_body,
    read_tools,
    refuse,
    texts,
    too_deep,
)

_DONE = b"data: [DONE]\n\n"
_NEVER: dict[str, Any] = {
    "refusal": None,
    "annotations": [],
}  # fields of a message that clients expect, and no reply here has


class ChatCompletions(Dialect):
    path = "/chat/completions"

    def _read(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        read = arrived.bodies.read(raw, arrived.name) if arrived.bodies is not None and arrived.name else None
        if read is not None:
            body = read.envelope
            check_model(body, (arrived.model_name,))
        else:
            body = read_body(raw, (arrived.model_name,))
        _refuse_unsupported(body)
        tools = [] if body.get("tool_choice") == "none" else read_tools(body.get("tools"), _tool)
        limit = integer(body, "max_completion_tokens", 1) or integer(body, "max_tokens", 1)
        program_id, options = program_of(body), body.get("stream_options")
        conversation, sent = _conversation(body, read, tools)
        return ChatRequest(
            conversation=conversation,
            tools=tools,
            stream=flag(body, "stream"),
            max_tokens=limit,
            temperature=number(body, "temperature", 0.0, 2.0),
            top_p=number(body, "top_p", 1e-6, 1.0),
            top_k=max(0, integer(body, "top_k", -1) or 0),
            seed=integer(body, "seed", -(2**63)),
            program_id=program_id,
            logprobs=flag(body, "logprobs"),
            echo={"include_usage": isinstance(options, dict) and flag(options, "include_usage")},
            sent=sent,
        )

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {**answer.message, **_NEVER},
            "finish_reason": answer.finish_reason,
            "logprobs": answer.logprobs,
        }
        return {**_head(answer, "chat.completion"), "choices": [choice], "usage": answer.usage}

    def events(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[bytes]:
        yield from map(event, chunks(answer, request.echo["include_usage"]))
        yield _DONE

    def broken_off(self, error: ApiError) -> bytes:
        return event(error.body()) + _DONE


def _conversation(
    body: Mapping[str, Any], read: Body | None, tools: list[dict[str, Any]]
) -> tuple[Conversation, Sent | None]:
    if read is None:
        return Conversation.of(_messages(body.get("messages")), tools), None
    _check_messages(read.new, read.known)
    try:
        return read.understood(tools)
    except orjson.JSONEncodeError as error:
        raise too_deep() from error


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    response_format = body.get("response_format")
    refuse(
        {
            "n": body.get("n") not in (None, 1),
            "stop": bool(body.get("stop")),
            "top_logprobs": bool(body.get("top_logprobs")),
            "response_format": response_format is not None and response_format != {"type": "text"},
            "tool_choice": body.get("tool_choice") not in (None, "auto", "none"),
            "functions": bool(body.get("functions")),
        }
    )


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise invalid("'messages' must be a non-empty list.", "messages")
    _check_messages(messages, 0)
    return messages


def _check_messages(messages: list[Any], first: int) -> None:
    """Of which the first has that number."""
    for index, message in enumerate(messages, first):
        if not _is_plain(message):
            _check_message(message, f"messages[{index}]")


def _is_plain(message: Any) -> bool:
    """Most are: text of one of the roles and nothing more. There may be hundreds, so this is quick."""
    return (
        type(message) is dict
        and len(message) == 2
        and message.get("role") in ROLES
        and type(message.get("content")) is str
    )


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise invalid(f"'{where}' must be an object with a role of {', '.join(ROLES)}.", where)
    texts(message.get("content"), f"{where}.content")
    if message.get("content") is None and message["role"] != "assistant":
        raise invalid(f"'{where}.content' is missing.", f"{where}.content")
    if message["role"] == "assistant":
        _check_assistant(message, where)


def _check_assistant(message: Mapping[str, Any], where: str) -> None:
    if not isinstance(message.get("reasoning_content"), (str, type(None))):
        raise invalid(f"'{where}.reasoning_content' must be a string.", where)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise invalid(f"'{where}.tool_calls' must be a list.", where)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments"), (str, dict))
        ):
            raise invalid(f"'{where}.tool_calls' must hold function calls with a name and arguments.", where)


def _tool(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"'{where}' must be a function with a name.", where)
    return tool  # type: ignore[no-any-return]


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
    for part in parts(message.get("reasoning_content") or ""):
        yield {"reasoning_content": part}
    for part in parts(message.get("content") or ""):
        yield {"content": part}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        for part in parts(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _head(answer: ChatAnswer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.name}", "object": kind, "created": answer.created_s, "model": answer.model}
