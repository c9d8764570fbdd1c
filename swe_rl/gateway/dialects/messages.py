"""Anthropic's Messages.

Invariants:
- Blocks become the messages of a chat completion in their order: text stays text, a thinking block the reasoning, a
  tool_use a call with its input, a tool_result a message of the tool. A system message stays where it stands.
- Refused by name: images and documents, tools that only Anthropic runs, stop sequences, a forced tool choice, output
  formats, a reply that the client begins, conversations that are kept (`thread`), compaction by the service.
- Not compared with what was answered, as nowhere: thinking blocks, ids of calls. Not kept: `is_error`, `cache_control`,
  `thinking`, `metadata`, redacted thinking, the order of text and calls within a reply.
- https://docs.anthropic.com/en/api/messages
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from swe_rl.gateway.conversation import Conversation
from swe_rl.gateway.dialects.protocol import Dialect, event
from swe_rl.gateway.errors import CONTEXT_OVERFLOW, ApiError, invalid
from swe_rl.gateway.reply import ChatAnswer, parts
from swe_rl.gateway.request import (
    Arrived,
    ChatRequest,
    flag,
    integer,
    number,
    program_of,
    read_body,
    read_tools,
    refuse,
    string,
    texts,
)

_ROLES = ("user", "assistant", "system")
_NO_STOP = {"stop_sequence": None, "stop_details": None, "container": None}
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_KINDS = {  # of errors, by status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NEVER_USED = {"cache_creation": None, "inference_geo": None, "service_tier": None}  # fields of a usage, null here
_SIGNED = "swe_rl"  # of thoughts: some clients drop or rewrite those that have no signature
_THREAD = "thread_unsupported_request"  # the client's word: it then sends the whole conversation by itself
_Blocks = list[Mapping[str, Any]]


class Messages(Dialect):
    path = "/messages"
    count_path = "/messages/count_tokens"

    def _read(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        body = read_body(raw, (arrived.model_name,))
        _refuse_unsupported(body)
        choice = body.get("tool_choice")
        tools = (
            [] if isinstance(choice, dict) and choice.get("type") == "none" else read_tools(body.get("tools"), _tool)
        )
        messages = [*_system(body.get("system")), *_messages(body.get("messages"))]
        return ChatRequest(
            conversation=Conversation.of(messages, tools),
            tools=tools,
            stream=flag(body, "stream"),
            max_tokens=integer(body, "max_tokens", 1),
            temperature=number(body, "temperature", 0.0, 1.0),
            top_p=number(body, "top_p", 1e-6, 1.0),
            top_k=integer(body, "top_k", 0) or 0,
            seed=None,
            program_id=program_of(body),
        )

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        reason = _STOP_REASONS.get(answer.finish_reason, "end_turn")
        usage = _usage(answer) | _NEVER_USED
        return {**_head(answer), "content": _content(answer), "stop_reason": reason, "usage": usage}

    def events(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[bytes]:
        usage = _usage(answer)
        none_yet = {**usage, **_NEVER_USED, "output_tokens": 0}
        begun = {**_head(answer), "content": [], "stop_reason": None, "usage": none_yet}
        yield _event("message_start", message=begun)
        for index, block in enumerate(_content(answer)):
            empty, deltas = _streamed(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        end = {"stop_reason": _STOP_REASONS.get(answer.finish_reason, "end_turn"), **_NO_STOP}
        yield _event("message_delta", delta=end, usage=usage)
        yield _event("message_stop")

    def error(self, error: ApiError) -> dict[str, Any]:
        message = error.message
        if error.code == CONTEXT_OVERFLOW:
            message = f"prompt is too long: {message}"  # the words by which clients know it
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        more = {"details": {"error_code": error.code}} if error.code == _THREAD else {}
        return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": None}

    def broken_off(self, error: ApiError) -> bytes:
        return event(self.error(error), "error")


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    choice, output = body.get("tool_choice"), body.get("output_config")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    refuse(
        {
            "stop_sequences": bool(body.get("stop_sequences")),
            "tool_choice": kind not in (None, "auto", "none"),
            "output_format": bool(body.get("output_format")),
            "output_config": isinstance(output, dict) and bool(output.get("format")),
            "mcp_servers": bool(body.get("mcp_servers")),
            "container": bool(body.get("container")),
            "compaction": bool(body.get("compaction")),
        }
    )
    if body.get("thread") is not None:
        raise invalid("A conversation is not kept for 'thread'; send it whole, without 'thread'.", "thread", _THREAD)


def _system(system: Any) -> list[dict[str, Any]]:
    texts(system, "system")
    return [{"role": "system", "content": system}] if system else []


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise invalid(f"'{where}' must be a tool with a name.", where)
    if tool.get("type") not in (None, "custom"):
        raise invalid(f"'{where}' is no tool of the client's: type {tool['type']!r} is not supported.", where)
    if not isinstance(tool.get("input_schema"), dict):
        raise invalid(f"'{where}.input_schema' must be an object.", where)
    function = {"name": tool["name"]}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise invalid("'messages' must be a non-empty list.", "messages")
    chat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise invalid(f"'{where}' must be an object with a role of {', '.join(_ROLES)}.", where)
        content = message.get("content")
        if isinstance(content, str):
            chat.append({"role": role, "content": content})
        elif role == "system":
            texts(content, f"{where}.content")
            chat.append({"role": role, "content": content or ""})
        elif role == "assistant":
            chat.append(_assistant(_blocks(content, where), where))
        else:
            chat += _user(_blocks(content, where), where)
    if chat[-1]["role"] == "assistant":
        raise invalid("The last message must be the user's: a reply that is begun is not supported.", "messages")
    return chat


def _blocks(content: Any, where: str) -> _Blocks:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise invalid(f"'{where}.content' must be a string or a list of blocks.", f"{where}.content")
    return content


def _assistant(blocks: _Blocks, where: str) -> dict[str, Any]:
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place, kind = f"{where}.content[{index}]", block.get("type")
        if kind == "text":
            text.append(string(block, "text", place))
        elif kind == "thinking":
            thoughts.append(string(block, "thinking", place))
        elif kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                raise invalid(f"'{place}.input' must be an object.", place)
            function = {"name": string(block, "name", place), "arguments": block["input"]}
            calls.append({"id": string(block, "id", place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unknown(place, "text, thinking or tool_use")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _user(blocks: _Blocks, where: str) -> list[dict[str, Any]]:
    """A message for each result, and one for the text between them."""
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place, kind = f"{where}.content[{index}]", block.get("type")
        if kind == "tool_result":
            texts(block.get("content"), f"{place}.content")
            call_id = string(block, "tool_use_id", place)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": block.get("content") or ""})
        elif kind == "text":
            part = {"type": "text", "text": string(block, "text", place)}
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"].append(part)
            else:
                messages.append({"role": "user", "content": [part]})
        else:
            raise _unknown(place, "text or tool_result")
    return messages or [{"role": "user", "content": ""}]


def _unknown(where: str, kinds: str) -> ApiError:
    return invalid(f"'{where}' has a type that is not supported here; it must be {kinds}.", where)


def _content(answer: ChatAnswer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": answer.message["reasoning_content"], "signature": _SIGNED})
    if answer.message.get("content"):
        content.append({"type": "text", "text": answer.message["content"], "citations": []})
    for call in answer.calls:
        arguments = orjson.Fragment(call["function"]["arguments"])  # as it was written: any number, any order
        head = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "caller": {"type": "direct"}}
        content.append({**head, "input": arguments})
    return content


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """How a block begins, and what is added to it."""
    if block["type"] == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        said = [_delta("thinking", part) for part in parts(block["thinking"])]
        return {**block, "thinking": "", "signature": ""}, [*said, signed]
    if block["type"] == "text":
        return {**block, "text": ""}, [_delta("text", part) for part in parts(block["text"])]
    written = orjson.dumps(block["input"]).decode()
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts(written)]
    return {**block, "input": {}}, deltas


def _delta(kind: str, part: str) -> dict[str, Any]:
    return {"type": f"{kind}_delta", kind: part}


def _head(answer: ChatAnswer) -> dict[str, Any]:
    head = {"id": f"msg_{answer.name}", "type": "message", "role": "assistant", "model": answer.model}
    return {**head, **_NO_STOP}


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    """`input_tokens` are those that were not in the engine's cache."""
    cached = answer.usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": answer.usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": answer.usage["completion_tokens"],
        "output_tokens_details": None,
        "server_tool_use": None,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
