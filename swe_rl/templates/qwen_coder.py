"""This module renders Qwen3-Coder's chat format where it is another one than Qwen3's: tools and calls as tags, no think
block.

Invariants:
- The concatenated pieces are, character for character, what `qwen_coder.jinja` renders.
- Rendering is append-only, as qwen.py says. Tool messages always have a user turn around them; the checkpoint's
  template does not open it if they begin the conversation.
- Words and blanks of the format are those that the model was trained on:
  https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat template of the checkpoint).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.templates.qwen import (
    IM_END,
    IM_START,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_RESPONSE,
    TOOL_RESPONSE_END,
    Message,
    Piece,
    dump_json,
    join_results,
    message_text,
    parse_arguments,
    role_of,
    spoken,
)

_SYSTEM_OF_TOOLS = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
_TOOLS_HEAD = "\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n",
    TOOL_CALL,
    "\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n",
    TOOL_CALL_END,
    "\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner <function=...></function> "
    "block must be nested within ",
    TOOL_CALL,
    TOOL_CALL_END,
    " XML tags\n- Required parameters MUST be specified\n- You may provide optional reasoning for your function call "
    "in natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer the "
    "question like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>",
)


def preamble(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Renders the first system message and the tools, or nothing; tools alone have a system message of their own."""
    system = bool(messages) and role_of(messages[0]) == "system"
    if not system and not tools:
        return []
    if system:
        text = message_text(messages[0].get("content"))
    else:
        text = _SYSTEM_OF_TOOLS
    pieces: list[Piece] = [IM_START, "system\n", text]
    if tools:
        listed = "".join(f"\n{line}" for tool in tools for line in _tool(tool))
        pieces += [_TOOLS_HEAD, listed, *_TOOLS_TAIL]
    return [*pieces, IM_END, "\n"]


def turn(message: Message, before: str | None, after: str | None) -> list[Piece]:
    """Renders a user, system or tool message; `before` and `after` are its neighbours' roles."""
    role = role_of(message)
    text = message_text(message.get("content"))
    if role != "tool":
        return [IM_START, f"{role}\n", text, IM_END, "\n"]
    result = [TOOL_RESPONSE, f"\n{text}\n", TOOL_RESPONSE_END, "\n"]
    return join_results(result, before, after, opening="user\n")


def reply(message: Message) -> list[Piece]:
    """Renders what the model would have sampled to say `message`, without the end marker; it never reasons in a
    block."""
    text = message_text(message.get("content"))
    calls = message.get("tool_calls") or ()
    if not calls:
        return spoken(text)
    text = text.strip()
    pieces: list[Piece] = []
    if text:
        pieces = [*spoken(text), "\n\n"]
    for number, call in enumerate(calls):
        if number:
            pieces.append("\n")
        pieces += _tool_call(call)
    return pieces


def _tool(tool: Mapping[str, Any]) -> Iterator[str]:
    function = tool.get("function", tool)
    yield f"<function>\n<name>{function['name']}</name>"
    if "description" in function:
        yield _described(function)
    yield "<parameters>"
    parameters = function.get("parameters")
    properties = as_mapping(parameters).get("properties")
    for name, schema in as_mapping(properties).items():
        yield from _parameter(name, schema)
    yield from _others(parameters, ("type", "properties"))
    yield "</parameters>"
    yield from _others(function, ("type", "name", "description", "parameters"))
    yield "</function>"


def _parameter(name: str, schema: Any) -> Iterator[str]:
    yield f"<parameter>\n<name>{name}</name>"
    if isinstance(schema, Mapping) and "type" in schema:
        yield f"<type>{schema['type']}</type>"
    if isinstance(schema, Mapping) and "description" in schema:
        yield _described(schema)
    yield from _others(schema, ("name", "type", "description"))
    yield "</parameter>"


def _described(schema: Mapping[str, Any]) -> str:
    return f"<description>{str(schema['description']).strip()}</description>"


def _others(schema: Any, known: Sequence[str]) -> Iterator[str]:
    """Writes what else a schema says, each key as a tag of its own."""
    for key, value in as_mapping(schema).items():
        if key not in known:
            yield f"<{key}>{_written(value)}</{key}>"


def _written(value: Any) -> str:
    """Writes lists and objects as JSON; true, false and null are Python's words, as the model knows them."""
    if isinstance(value, (Mapping, list, tuple)):
        return dump_json(value)
    return str(value)


def _tool_call(call: Mapping[str, Any]) -> list[Piece]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_arguments(arguments)
    if isinstance(arguments, Mapping):
        inner = "".join(f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in arguments.items())
    else:
        inner = f"{arguments}\n" if arguments else ""
    return [TOOL_CALL, f"\n<function={function['name']}>\n{inner}</function>\n", TOOL_CALL_END]
