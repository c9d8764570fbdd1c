"""This dialect is OpenAI's chat completions.

Invariants:
- These forms of the reply are not supported: n > 1, stop strings, top_logprobs, response formats other than text, a
  forced tool choice. With the tool choice `none` the tools stay in the prompt, so that the conversation stays the same
  one.
- What a client sends again is compared byte by byte (`gateway/conversation.py`): a call costs what is new.
- https://platform.openai.com/docs/api-reference/chat
"""

from collections.abc import Iterator, Mapping
from typing import Any

from swe_rl.gateway.chains.segment import read_purpose
from swe_rl.gateway.conversation import Body, RequestMessages, SentBody
from swe_rl.gateway.dialects.dialect import Dialect, ReplyStream, encode_event
from swe_rl.gateway.errors import ApiError, invalid_request
from swe_rl.gateway.mending import Mender
from swe_rl.gateway.reply import ChatAnswer, Opening, cut_parts
from swe_rl.gateway.request import (
    ROLES,
    Arrived,
    ChatRequest,
    check_model,
    kind_of_choice,
    program_of,
    read_body,
    read_flag,
    read_integer,
    read_number,
)

_DONE = b"data: [DONE]\n\n"
# These fields are read here, or change no reply. Any other field is noted in the reply's header.
_READ = frozenset({
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "top_k", "seed", "program_id", "logprobs", "n", "stop", "top_logprobs",
    "response_format", "functions", "function_call", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "cache_salt", "request_id", "priority",
    "add_generation_prompt", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
    "include_reasoning", "skip_special_tokens", "spaces_between_special_tokens", "return_token_ids",
    "add_special_tokens", "documents", "segment",
})  # fmt: skip
# Some clients write a reply's reasoning as parts of its content.
_THOUGHTS = ("thinking", "redacted_thinking")
_NOTHING: frozenset[str] = frozenset()
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
# Clients expect these fields in a message, and no reply here has them.
_NEVER: dict[str, Any] = {
    "refusal": None,
    "annotations": [],
}


class ChatCompletions(Dialect):
    path = "/chat/completions"

    def _read(self, raw: bytes, arrived: Arrived, mender: Mender) -> ChatRequest:
        read = None
        if arrived.bodies is not None and arrived.name:
            read = arrived.bodies.read(raw, arrived.name)
        if read is not None:
            body = read.envelope
            check_model(body, (arrived.model_name,))
        else:
            body = read_body(raw, (arrived.model_name,))
        mender.note_fields(body, _READ)
        _refuse_forms(body, mender)
        tools = mender.tools(body.get("tools"), _check_tool)
        program_id = mender.allow(lambda: program_of(body), "program_id", None)
        options = body.get("stream_options")
        conversation, sent, notes = _read_conversation(body, read, tools, mender)
        return ChatRequest(
            conversation=conversation,
            tools=tools,
            stream=mender.allow(lambda: read_flag(body, "stream"), "stream", False),
            max_tokens=mender.allow(lambda: _token_limit(body), "max_tokens", None),
            temperature=mender.allow(lambda: read_number(body, "temperature", 0.0, 2.0), "temperature", 1.0),
            top_p=mender.allow(lambda: read_number(body, "top_p", 1e-6, 1.0), "top_p", 1.0),
            top_k=mender.allow(lambda: max(0, read_integer(body, "top_k", -1) or 0), "top_k", 0),
            seed=mender.allow(lambda: read_integer(body, "seed", -(2**63)), "seed", None),
            program_id=program_id,
            logprobs=mender.allow(lambda: read_flag(body, "logprobs"), "logprobs", False),
            echo={"include_usage": isinstance(options, dict) and options.get("include_usage") is True},
            sent=sent,
            calls=kind_of_choice(body) != "none",
            notes=notes,
            purpose=read_purpose(body),
        )

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {**answer.message, **_NEVER},
            "finish_reason": answer.finish_reason,
            "logprobs": answer.logprobs,
        }
        return {**_reply_head(answer, "chat.completion"), "choices": [choice], "usage": answer.usage}

    def stream(self, request: ChatRequest) -> "_Chunks":
        return _Chunks(request.echo["include_usage"])


class _Chunks(ReplyStream):
    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._head: dict[str, Any] = {}

    def begin(self, opening: Opening) -> Iterator[bytes]:
        self._head = _reply_head(opening, "chat.completion.chunk")
        yield self._chunk({"role": "assistant", "content": ""})

    def alive(self) -> bytes:
        return self._chunk({})

    def finish(self, answer: ChatAnswer) -> Iterator[bytes]:
        """Sends the whole reply. With `include_usage` the usage has a last chunk of its own, as OpenAI sends it; else
        it rides on the end."""
        if answer.logprobs is not None:
            yield self._chunk({}, logprobs=answer.logprobs)
        yield from map(self._chunk, _message_deltas(answer.message))
        end = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason}
        if self._include_usage:
            yield encode_event({**self._head, "choices": [end]})
            yield encode_event({**self._head, "choices": [], "usage": answer.usage})
        else:
            yield encode_event({**self._head, "choices": [end], "usage": answer.usage})
        yield _DONE

    def fail(self, error: ApiError) -> bytes:
        return encode_event(error.body()) + _DONE

    def _chunk(self, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
        return encode_event({**self._head, "choices": [choice]})


def _token_limit(body: Mapping[str, Any]) -> int | None:
    return read_integer(body, "max_completion_tokens", 1) or read_integer(body, "max_tokens", 1)


def _read_conversation(
    body: Mapping[str, Any], read: Body | None, tools: list[dict[str, Any]], mender: Mender
) -> tuple[RequestMessages, SentBody | None, frozenset[str]]:
    """Returns the conversation, what is kept of the body for the next request, and the kinds of what was mended in its
    messages."""
    if read is None:
        messages, mended = _mend_messages(mender.things(body.get("messages"), "messages"))
        return RequestMessages.of(messages, tools), None, _NOTHING.union(*mended)
    conversation, sent = read.understood(tools, _mend_messages)
    return conversation, sent, _NOTHING.union(*filter(None, sent.mended))


def _refuse_forms(body: Mapping[str, Any], mender: Mender) -> None:
    response_format = body.get("response_format")
    mender.refuse_forms(
        {
            "n": body.get("n") not in (None, 1),
            "stop": bool(body.get("stop")),
            "top_logprobs": bool(body.get("top_logprobs")),
            "response_format": response_format is not None and response_format != {"type": "text"},
            "tool_choice": kind_of_choice(body) not in (None, "auto", "none"),
            "functions": bool(body.get("functions")),
            "structured_outputs": any(body.get(name) for name in _GUIDED),
        }
    )


def _mend_messages(messages: list[Any]) -> tuple[list[dict[str, Any]], list[frozenset[str]]]:
    """Returns the messages, and the kinds of what was mended in each."""
    mended: list[dict[str, Any]] = []
    kinds: list[frozenset[str]] = []
    for message in messages:
        if _is_plain(message):
            mended.append(message)
            kinds.append(_NOTHING)
            continue
        mender = Mender()
        mended.append(_mended_message(mender.thing(message), mender))
        kinds.append(frozenset(mender.kinds))
    return mended, kinds


def _is_plain(message: Any) -> bool:
    """Tells whether a message is text of one of the roles and nothing more. Most are, and there may be hundreds, so
    this is quick."""
    return (
        type(message) is dict
        and len(message) == 2
        and message.get("role") in ROLES
        and type(message.get("content")) is str
    )


def _mended_message(message: dict[str, Any], mender: Mender) -> dict[str, Any]:
    role = mender.role(message.get("role"), ROLES)
    if role != "assistant":
        return {**message, "role": role, "content": mender.text(message.get("content"))}
    content = message.get("content") or message.get("refusal")
    thoughts = message.get("reasoning_content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") in _THOUGHTS]
        content = [part for part in content if part not in parts]
        if thoughts is None and parts:
            thoughts = [part.get("thinking") or "" for part in parts]
    said: dict[str, Any] = {"role": role, "content": None if content is None else mender.text(content)}
    if thoughts is None:
        # Other servers call the field so, and so do their clients.
        thoughts = message.get("reasoning")
    if thoughts is not None:
        said["reasoning_content"] = mender.text(thoughts)
    calls = message.get("tool_calls") or _older_form(message)
    if not isinstance(calls, list):
        mender.note("arguments")
        return said
    if calls:
        return {**said, "tool_calls": [_mended_call(call, mender) for call in calls]}
    return said


def _older_form(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the one call that a message could have before there were `tool_calls`."""
    called = message.get("function_call")
    if isinstance(called, dict):
        return [{"function": called}]
    return []


def _mended_call(call: Any, mender: Mender) -> dict[str, Any]:
    if not isinstance(call, dict):
        call = {}
    custom = call.get("custom")
    if isinstance(custom, dict):
        function: Any = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    else:
        function = call.get("function")
    if not isinstance(function, dict):
        function = {}
    name = mender.word(function.get("name"), "arguments")
    arguments = mender.arguments(function.get("arguments"))
    return {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _check_tool(tool: Any, where: str) -> dict[str, Any]:
    function = None
    if isinstance(tool, dict):
        function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid_request(f"'{where}' must be a function with a name.", where)
    return tool  # type: ignore[no-any-return]


def _message_deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in cut_parts(message.get("reasoning_content") or ""):
        yield {"reasoning_content": part}
    for part in cut_parts(message.get("content") or ""):
        yield {"content": part}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        for part in cut_parts(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _reply_head(answer: ChatAnswer | Opening, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.name}", "object": kind, "created": answer.created_s, "model": answer.model}
