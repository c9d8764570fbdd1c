"""This module reads messages of other programs into the messages that our renderers take.

Invariants:
- A message has a role that renderers know, text, and calls with names. Whatever else a program notes is left out.
- What a file marks as not to be learned is so in every format: `weight` 0, as in OpenAI's fine-tuning, and SWE-agent's
  demonstrations, which another model said.
- Nothing is guessed: an unknown role or a picture is refused with the field's name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.imitation.record import Message, wrong_field

# Every program has names of its own for who speaks.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_ROLE_KEYS = ("role", "from")
_TEXT_KEYS = ("content", "value", "text")
_REASONING_KEYS = ("reasoning_content", "reasoning")
_KEPT_OF_TOOL = ("tool_call_id", "name")
_TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(values: Any, where: str, name: str) -> tuple[Message, ...]:
    """Returns the messages of the list `values`, which the record calls `name`. Raises DataError."""
    if isinstance(values, str):
        values = parse_json(values, where, name)
    if not isinstance(values, Sequence) or not values:
        raise wrong_field(where, name, "is no list of messages", "A message is an object with role and content")
    messages = tuple(read_message(value, where, f"{name}[{number}]") for number, value in enumerate(values))
    if not any(message["role"] == "assistant" for message in messages):
        raise wrong_field(where, name, "has no message of the assistant", "Leave rows out that teach nothing")
    return messages


def find_context(values: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Returns the numbers of the messages that a file marks as not to be learned."""
    return frozenset(number for number, value in enumerate(values) if value.get("weight") == 0 or value.get("is_demo"))


def read_message(value: Any, where: str, name: str) -> Message:
    """Returns one message. Raises DataError."""
    if not isinstance(value, Mapping):
        raise wrong_field(where, name, f"is {_kind(value)}", "A message is an object with role and content")
    said = next((key for key in _ROLE_KEYS if value.get(key) is not None), None)
    if said is None:
        raise wrong_field(where, f"{name}.role", "is missing", f"Every message has one of {', '.join(ROLES)}")
    role = ROLES.get(str(value[said]).lower())
    if role is None:
        raise wrong_field(where, f"{name}.{said}", f"is {value[said]!r}", f"It has to be one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": role, "content": read_text(value, where, name)}
    if role == "assistant":
        message |= _read_reply(value, where, name)
    if role == "tool":
        message |= {key: value[key] for key in _KEPT_OF_TOOL if isinstance(value.get(key), str)}
        ids = value.get("tool_call_ids")  # It is SWE-agent's name, and a list of one.
        if isinstance(ids, Sequence) and ids and "tool_call_id" not in message:
            message["tool_call_id"] = str(ids[0])
    return message


def read_text(value: Mapping[str, Any], where: str, name: str) -> str:
    """Returns a message's text. A list of parts is joined. Raises DataError for what is no text."""
    key = next((key for key in _TEXT_KEYS if value.get(key) is not None), None)
    if key is None:
        return str(value.get("system_prompt") or "")
    return _join_parts(value[key], where, f"{name}.{key}")


def _join_parts(content: Any, where: str, name: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise wrong_field(where, name, f"is {_kind(content)}", "It has to be text, or a list of text parts")
    texts = []
    for number, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = "text"
        if isinstance(part, Mapping):
            kind = part.get("type", "text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise wrong_field(where, f"{name}[{number}]", f"is of type {kind!r}", "Only text can be imitated")
        texts.append(text)
    return "".join(texts)


def _read_reply(value: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    """Returns what an assistant's message has beside its text."""
    made: dict[str, Any] = {}
    reasoning = next((value[key] for key in _REASONING_KEYS if isinstance(value.get(key), str)), None)
    if reasoning:
        made["reasoning_content"] = reasoning
    calls = value.get("tool_calls")
    if calls is None and isinstance(value.get("function_call"), Mapping):
        calls = [{"function": value["function_call"]}]
    if not calls:
        return made
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise wrong_field(where, f"{name}.tool_calls", f"is {_kind(calls)}", "It has to be a list of calls")
    made["tool_calls"] = [_read_call(call, where, f"{name}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return made


def _read_call(call: Any, where: str, name: str) -> dict[str, Any]:
    function = as_mapping(call).get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise wrong_field(where, f"{name}.function.name", "is missing", "A call names a function and has arguments")
    made: dict[str, Any] = {"type": "function"}
    if isinstance(call.get("id"), str):
        made["id"] = call["id"]
    arguments = read_arguments(function.get("arguments"), where, f"{name}.function.arguments")
    return made | {"function": {"name": function["name"], "arguments": arguments}}


def read_arguments(value: Any, where: str, name: str) -> dict[str, Any]:
    """Returns the arguments of a call, which are an object or its JSON. Raises DataError."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = parse_json(value, where, name)
    if not isinstance(value, Mapping):
        raise wrong_field(where, name, f"is {_kind(value)}", "Arguments are an object, or the JSON of one")
    return dict(value)


def read_tools(values: Any, where: str, name: str = "tools") -> tuple[Mapping[str, Any], ...]:
    """Returns the tools that a conversation offers, in OpenAI's form. Raises DataError."""
    if isinstance(values, str) and values.strip():
        values = parse_json(values, where, name)
    if not values:
        return ()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise wrong_field(where, name, f"is {_kind(values)}", "It has to be a list of tools in OpenAI's form")
    return tuple(_read_tool(tool, where, f"{name}[{number}]") for number, tool in enumerate(values))


def _read_tool(tool: Any, where: str, name: str) -> Mapping[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise wrong_field(where, f"{name}.function.name", "is missing", "A tool names its function")
    return {"type": "function", "function": dict(function)}


def parse_json(text: str, where: str, name: str) -> Any:
    """Returns what a text of JSON holds. Raises DataError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong_field(where, name, f"is no JSON ({error})", "Correct it, or leave the row out") from error


def _kind(value: Any) -> str:
    """Returns words for the kind of a JSON value."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", tuple: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "a number")
