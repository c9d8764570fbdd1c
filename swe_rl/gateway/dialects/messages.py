"""This dialect is Anthropic's Messages.

Invariants:
- Blocks become the messages of a chat completion in their order: text stays text, a thinking block the reasoning, a
  tool_use a call with its input, a tool_result a message of the tool. A system message stays where it stands.
- These forms of the reply are not supported: stop sequences, a forced tool choice, output formats. Any session refuses
  conversations that are kept (`thread`). A reply that the client begins counts as finished.
- As in every dialect, thinking blocks and ids of calls are not compared with what was answered. Not kept: `is_error`,
  `cache_control`, `thinking`, `metadata`, redacted thinking, the order of text and calls within a reply.
- https://docs.anthropic.com/en/api/messages
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from swe_rl.gateway.conversation import RequestMessages
from swe_rl.gateway.dialects.dialect import Dialect, ReplyStream, encode_event
from swe_rl.gateway.errors import ApiError, invalid_request, overflow_figures
from swe_rl.gateway.mending import Mender
from swe_rl.gateway.reply import ChatAnswer, Opening, cut_parts
from swe_rl.gateway.request import (
    Arrived,
    ChatRequest,
    kind_of_choice,
    program_of,
    read_body,
    read_flag,
    read_integer,
    read_number,
)

_ROLES = ("user", "assistant", "system")
# These fields are read here, or change no reply. Any other field is noted in the reply's header.
_READ = frozenset({
    "model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens", "temperature", "top_p", "top_k",
    "program_id", "stop_sequences", "output_format", "output_config", "thread", "metadata", "service_tier",
    "cache_control", "betas", "inference_geo", "user_profile_id", "diagnostics", "thinking",
})  # fmt: skip
_NO_STOP = {"stop_sequence": None, "stop_details": None, "container": None}
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
# Anthropic's API names these kinds of errors, by HTTP status.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Clients expect these fields in a usage. They are null here.
_NEVER_USED = {"cache_creation": None, "inference_geo": None, "service_tier": None}
# Some clients drop or rewrite a thinking block that has no signature.
_SIGNED = "swe_rl"
# This is the client's word for a refused thread. It then sends the whole conversation by itself.
_THREAD = "thread_unsupported_request"
_Blocks = list[Mapping[str, Any]]


class Messages(Dialect):
    path = "/messages"
    count_path = "/messages/count_tokens"

    def _read(self, raw: bytes, arrived: Arrived, mender: Mender) -> ChatRequest:
        body = read_body(raw, (arrived.model_name,))
        mender.note_fields(body, _READ)
        kind = kind_of_choice(body)
        _refuse_forms(body, kind, mender)
        tools = mender.tools(body.get("tools"), _read_tool)
        head = _system_messages(body.get("system"), mender)
        # Instructions alone can be answered, too.
        has_head_only = body.get("messages") in (None, []) and head
        if has_head_only:
            messages = head
        else:
            messages = [*head, *_read_messages(body.get("messages"), mender)]
        return ChatRequest(
            conversation=RequestMessages.of(messages, tools),
            tools=tools,
            stream=mender.allow(lambda: read_flag(body, "stream"), "stream", False),
            max_tokens=mender.allow(lambda: read_integer(body, "max_tokens", 1), "max_tokens", None),
            temperature=mender.allow(lambda: read_number(body, "temperature", 0.0, 1.0), "temperature", 1.0),
            top_p=mender.allow(lambda: read_number(body, "top_p", 1e-6, 1.0), "top_p", 1.0),
            top_k=mender.allow(lambda: read_integer(body, "top_k", 0) or 0, "top_k", 0),
            seed=None,
            program_id=mender.allow(lambda: program_of(body), "program_id", None),
            calls=kind != "none",
        )

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        reason = _STOP_REASONS.get(answer.finish_reason, "end_turn")
        usage = _reply_usage(answer) | _NEVER_USED
        return {**_reply_head(answer), "content": _reply_content(answer), "stop_reason": reason, "usage": usage}

    def stream(self, request: ChatRequest) -> "_Events":
        return _Events(self)

    def error(self, error: ApiError) -> dict[str, Any]:
        message = error.message
        figures = overflow_figures(error)
        # Clients recognize a full context by this sentence of Anthropic's.
        if figures is not None:
            message = f"prompt is too long: {figures[0]} tokens > {figures[1]} maximum"
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        if error.code == _THREAD:
            more = {"details": {"error_code": error.code}}
        else:
            more = {}
        return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": None}


class _Events(ReplyStream):
    def __init__(self, dialect: Messages) -> None:
        self._dialect = dialect

    def begin(self, opening: Opening) -> Iterator[bytes]:
        usage = {**_token_counts(opening.prompt_tokens, opening.cached_tokens, 0), **_NEVER_USED}
        yield _typed_event(
            "message_start", message={**_reply_head(opening), "content": [], "stop_reason": None, "usage": usage}
        )

    def alive(self) -> bytes:
        return _typed_event("ping")

    def finish(self, answer: ChatAnswer) -> Iterator[bytes]:
        for index, block in enumerate(_reply_content(answer)):
            empty, deltas = _stream_block(block)
            yield _typed_event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _typed_event("content_block_delta", index=index, delta=delta)
            yield _typed_event("content_block_stop", index=index)
        end = {"stop_reason": _STOP_REASONS.get(answer.finish_reason, "end_turn"), **_NO_STOP}
        yield _typed_event("message_delta", delta=end, usage=_reply_usage(answer))
        yield _typed_event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return encode_event(self._dialect.error(error), "error")


def _refuse_forms(body: Mapping[str, Any], kind: Any, mender: Mender) -> None:
    output = body.get("output_config")
    mender.refuse_forms(
        {
            "stop_sequences": bool(body.get("stop_sequences")),
            "tool_choice": kind not in (None, "auto", "none"),
            "output_format": bool(body.get("output_format")),
            "output_config": isinstance(output, dict) and bool(output.get("format")),
        }
    )
    if body.get("thread") is not None:
        raise invalid_request(
            "A conversation is not kept for 'thread'; send it whole, without 'thread'.", "thread", _THREAD
        )


def _system_messages(system: Any, mender: Mender) -> list[dict[str, Any]]:
    if system:
        return [{"role": "system", "content": mender.text(system)}]
    return []


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise invalid_request(f"'{where}' must be a tool with a name.", where)
    if tool.get("type") not in (None, "custom"):
        raise invalid_request(f"'{where}' is no tool of the client's: type {tool['type']!r} is not supported.", where)
    function: dict[str, Any] = {"name": tool["name"]}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    if isinstance(tool.get("input_schema"), dict):
        schema = tool["input_schema"]
    else:
        schema = {"type": "object"}
    return {"type": "function", "function": {**function, "parameters": schema}}


def _read_messages(messages: Any, mender: Mender) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    for sent in mender.things(messages, "messages"):
        message = mender.thing(sent)
        role = mender.role(message.get("role"), _ROLES)
        content = message.get("content")
        if role == "system" or not isinstance(content, list):
            chat.append({"role": role, "content": mender.text(content)})
        elif role == "assistant":
            chat.append(_assistant_message(_read_blocks(content, mender), mender))
        else:
            chat += _user_messages(_read_blocks(content, mender), mender)
    if chat[-1]["role"] == "assistant":
        mender.note("prefill")
    return chat


def _read_blocks(content: Sequence[Any], mender: Mender) -> _Blocks:
    return [block if isinstance(block, dict) else {"type": "text", "text": mender.text([block])} for block in content]


def _assistant_message(blocks: _Blocks, mender: Mender) -> dict[str, Any]:
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(mender.word(block.get("thinking"), "content"))
        elif kind == "tool_use":
            name = mender.word(block.get("name"), "arguments")
            function = {"name": name, "arguments": mender.arguments(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            text.append(mender.text([block]))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        return {**message, "tool_calls": calls}
    return message


def _user_messages(blocks: _Blocks, mender: Mender) -> list[dict[str, Any]]:
    """Returns a message for each result, and one for the text between them."""
    messages: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content")
            # A tool may say nothing.
            if content is None:
                said = ""
            else:
                said = mender.text(content)
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said})
            continue
        part = {"type": "text", "text": mender.text([block])}
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"].append(part)
        else:
            messages.append({"role": "user", "content": [part]})
    return messages or [{"role": "user", "content": ""}]


def _reply_content(answer: ChatAnswer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": answer.message["reasoning_content"], "signature": _SIGNED})
    if answer.message.get("content"):
        content.append({"type": "text", "text": answer.message["content"], "citations": []})
    for call in answer.calls:
        # Arguments are passed on as the model wrote them, with any number and in any order.
        arguments = orjson.Fragment(call["function"]["arguments"])
        head = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "caller": {"type": "direct"}}
        content.append({**head, "input": arguments})
    return content


def _stream_block(block: dict[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """Returns how a block begins, and the deltas that are added to it."""
    if block["type"] == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        said = [_make_delta("thinking", part) for part in cut_parts(block["thinking"])]
        return {**block, "thinking": "", "signature": ""}, [*said, signed]
    if block["type"] == "text":
        return {**block, "text": ""}, [_make_delta("text", part) for part in cut_parts(block["text"])]
    written = orjson.dumps(block["input"]).decode()
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in cut_parts(written)]
    return {**block, "input": {}}, deltas


def _make_delta(kind: str, part: str) -> dict[str, Any]:
    return {"type": f"{kind}_delta", kind: part}


def _reply_head(answer: ChatAnswer | Opening) -> dict[str, Any]:
    head = {"id": f"msg_{answer.name}", "type": "message", "role": "assistant", "model": answer.model}
    return {**head, **_NO_STOP}


def _reply_usage(answer: ChatAnswer) -> dict[str, Any]:
    cached = answer.usage["prompt_tokens_details"]["cached_tokens"]
    return _token_counts(answer.usage["prompt_tokens"], cached, answer.usage["completion_tokens"])


def _token_counts(prompt: int, cached: int, sampled: int) -> dict[str, Any]:
    """Returns the usage. `input_tokens` are those that were not in the engine's cache."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sampled,
        "output_tokens_details": None,
        "server_tool_use": None,
    }


def _typed_event(kind: str, **fields: Any) -> bytes:
    return encode_event({"type": kind, **fields}, kind)
