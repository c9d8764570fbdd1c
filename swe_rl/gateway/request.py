"""A chat-completions request, checked before anything is done with it.

Invariants:
- What cannot be honoured is refused by name (400), never ignored: n > 1, stop strings, top_logprobs, images,
  response formats other than text, a forced tool choice.
- A request that passes renders without an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from swe_rl.gateway.conversation import Body, Conversation, KnownBodies, Sent
from swe_rl.gateway.errors import ApiError, invalid

_PROGRAM = re.compile(rb'"program_id"[ \t\n\r]*:[ \t\n\r]*"([^"\\]+)"')
_PROGRAM_BYTES = 1024
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    conversation: Conversation
    tools: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    logprobs: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    program_id: str | None
    sent: Sent | None = None  # to be kept with the name of its session


def parse_request(raw: bytes, model_name: str, known: KnownBodies | None = None, name: str = "") -> ChatRequest:
    """`known` remembers bodies of this session, or of one of the same `name`. Raises ApiError."""
    read = known.read(raw, name) if known is not None and name else None
    body = read.envelope if read is not None else _loaded(raw)
    _check_model(body, (model_name,))
    _refuse_unsupported(body)
    tools = [] if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    limit = integer(body, "max_completion_tokens", 1) or integer(body, "max_tokens", 1)
    program_id = body.get("program_id")
    if program_id is not None and (not isinstance(program_id, str) or not program_id):
        raise invalid("'program_id' must be a non-empty string.", "program_id")
    conversation, sent = _conversation(body, read, tools)
    return ChatRequest(
        conversation=conversation,
        tools=tools,
        stream=_flag(body, "stream"),
        include_usage=isinstance(body.get("stream_options"), dict) and _flag(body["stream_options"], "include_usage"),
        logprobs=_flag(body, "logprobs"),
        max_tokens=limit,
        temperature=number(body, "temperature", 0.0, 2.0),
        top_p=number(body, "top_p", 1e-6, 1.0),
        top_k=max(0, integer(body, "top_k", -1) or 0),
        seed=integer(body, "seed", -(2**63)),
        program_id=program_id,
        sent=sent,
    )


def read_body(raw: bytes, names: Sequence[str]) -> dict[str, Any]:
    """A request for the model that these names stand for, the first of them its own. Raises ApiError."""
    body = _loaded(raw)
    _check_model(body, names)
    return body


def program_named(raw: bytes) -> str:
    """The program_id that a body seems to have, near its begin or its end; empty: none. Only its parser knows."""
    name = _PROGRAM.search(raw, 0, _PROGRAM_BYTES) or _PROGRAM.search(raw, max(0, len(raw) - _PROGRAM_BYTES))
    return name[1].decode(errors="replace") if name else ""


def _loaded(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    return body


def _check_model(body: Mapping[str, Any], names: Sequence[str]) -> None:
    if body.get("model", names[0]) not in names:
        message = f"The model {body['model']!r} does not exist; this gateway serves {names[0]!r}."
        raise ApiError(404, message, param="model", code="model_not_found")


def _conversation(
    body: Mapping[str, Any], read: Body | None, tools: list[dict[str, Any]]
) -> tuple[Conversation, Sent | None]:
    try:
        if read is None:
            return Conversation.of(_messages(body.get("messages")), tools), None
        _check_messages(read.new, read.known)
        return read.understood(tools)
    except (RecursionError, orjson.JSONEncodeError) as error:
        raise invalid("The messages or tools are nested too deeply.", "messages") from error


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    response_format = body.get("response_format")
    refused = {
        "n": body.get("n") not in (None, 1),
        "stop": bool(body.get("stop")),
        "top_logprobs": bool(body.get("top_logprobs")),
        "response_format": response_format is not None and response_format != {"type": "text"},
        "tool_choice": body.get("tool_choice") not in (None, "auto", "none"),
        "functions": bool(body.get("functions")),
    }
    for param, present in refused.items():
        if present:
            raise invalid(f"{param!r} with this value is not supported.", param, "unsupported_parameter")


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
        and message.get("role") in _ROLES
        and type(message.get("content")) is str
    )


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise invalid(f"'{where}' must be an object with a role of {', '.join(_ROLES)}.", where)
    _check_content(message.get("content"), where)
    if message.get("content") is None and message["role"] != "assistant":
        raise invalid(f"'{where}.content' is missing.", f"{where}.content")
    if message["role"] == "assistant":
        _check_assistant(message, where)


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(f"'{where}.content' must be a string or a list of text parts.", f"{where}.content")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f"'{where}.content' has a part that is not text; only text is supported.", f"{where}.content")


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


def _tools(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid("'tools' must be a list.", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"'tools[{index}]' must be a function with a name.", f"tools[{index}]")
    return tools


def _flag(body: Mapping[str, Any], param: str) -> bool:
    value = body.get(param)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"'{param}' must be true or false.", param)
    return bool(value)


def integer(body: Mapping[str, Any], param: str, least: int) -> int | None:
    value = body.get(param)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise invalid(f"'{param}' must be an integer of at least {least}.", param)
    return value


def number(body: Mapping[str, Any], param: str, least: float, most: float) -> float:
    value = body.get(param)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise invalid(f"'{param}' must be a number between {least:g} and {most:g}.", param)
    return float(value)
