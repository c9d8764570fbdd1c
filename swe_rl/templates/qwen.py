"""This module renders Qwen's chat format piece by piece: markers of the template apart from the text of the messages.

Invariants:
- The concatenated pieces are, character for character, what `qwen.jinja` / `qwen_plain.jinja` render.
- Rendering is append-only: what a message renders to does not depend on what follows it, except that a run of tool
  messages is closed at its end. Qwen3's stock template breaks this at two places (it drops the reasoning of earlier
  turns, and the empty think block that its own generation prompt added); both gates are removed here.
- Only the template writes `Marker`s for user, system and tool messages: such text can never become a special token.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Marker(str):
    """Text of the template that becomes a special token if the tokenizer has one."""

    __slots__ = ()


# A plain str is text; a Marker is the template's.
Piece = str
Message = Mapping[str, Any]

IM_START = Marker("<|im_start|>")
IM_END = Marker("<|im_end|>")
THINK = Marker("<think>")
THINK_END = Marker("</think>")
TOOL_CALL = Marker("<tool_call>")
TOOL_CALL_END = Marker("</tool_call>")
TOOL_RESPONSE = Marker("<tool_response>")
TOOL_RESPONSE_END = Marker("</tool_response>")

# The slowest characters, those that are no ASCII, take 2 ms for so many.
_SLICE_CHARS = 2**18
# Beside its characters, a number, a list or a name costs about as much as so many of them.
_CHARS_OF_A_VALUE = 16

_SPOKEN = re.compile("(</?think>|</?tool_call>)")
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within ",
    TOOL_CALL,
    TOOL_CALL_END,
    " XML tags:\n",
    TOOL_CALL,
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
    TOOL_CALL_END,
)


def message_text(content: Any) -> str:
    """Returns a message's text: None is empty, a list of text parts is their concatenation."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def role_of(message: Message) -> str:
    role = str(message["role"])
    if role == "developer":
        return "system"
    return role


def preamble(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Renders the first system message and the tools, or nothing."""
    system = bool(messages) and role_of(messages[0]) == "system"
    if not system and not tools:
        return []
    pieces: list[Piece] = [IM_START, "system\n"]
    if system:
        pieces.append(message_text(messages[0].get("content")))
    if tools:
        pieces += ["\n\n" if system else "", *tools_text(tools)]
    return [*pieces, IM_END, "\n"]


def tools_text(tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Renders what a system message says of the tools."""
    listed = "".join("\n" + dump_json(tool) for tool in tools)
    return [_TOOLS_HEAD, listed, *_TOOLS_TAIL]


def turn(message: Message, before: str | None, after: str | None) -> list[Piece]:
    """Renders a user, system or tool message; `before` and `after` are its neighbours' roles."""
    role = role_of(message)
    text = message_text(message.get("content"))
    if role != "tool":
        return [IM_START, f"{role}\n", text, IM_END, "\n"]
    result = ["\n", TOOL_RESPONSE, f"\n{text}\n", TOOL_RESPONSE_END]
    return join_results(result, before, after, opening="user")


def join_results(result: Sequence[Piece], before: str | None, after: str | None, *, opening: str) -> list[Piece]:
    """Renders a tool's result in the one user message that it shares with the results beside it."""
    pieces = [*result]
    if before != "tool":
        pieces = [IM_START, opening, *pieces]
    if after != "tool":
        pieces += [IM_END, "\n"]
    return pieces


def reply(think_block: bool, message: Message, opened: bool) -> list[Piece]:
    """Renders what the model would have sampled to say `message`, without the end marker.

    With `think_block`, the template always writes one; with `opened`, the generation prompt has already written it
    (empty).
    """
    text = message_text(message.get("content"))
    reasoning = message.get("reasoning_content") or ""
    if think_block and message.get("reasoning_content") is None and "</think>" in text:
        reasoning = text.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        text = text.split("</think>")[-1].lstrip("\n")
    pieces: list[Piece] = []
    if reasoning or (think_block and not opened):
        pieces = [THINK, "\n", *spoken(reasoning.strip("\n")), "\n", THINK_END, "\n\n"]
    pieces += spoken(text.lstrip("\n") if think_block else text)
    for number, call in enumerate(message.get("tool_calls") or ()):
        pieces += ["\n"] if number or text else []
        pieces += _tool_call(call)
    return pieces


def spoken(text: str) -> list[Piece]:
    """Splits an assistant's text: think and tool-call marks are its own words' structure, turn marks never are."""
    # Most texts have no such mark, and this is far faster than the pattern.
    if "think>" not in text and "tool_call>" not in text:
        return [text]
    return [Marker(part) if index % 2 else part for index, part in enumerate(_SPOKEN.split(text))]


def _tool_call(call: Mapping[str, Any]) -> list[Piece]:
    function = call.get("function") or call
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else dump_json(arguments)
    return [TOOL_CALL, f'\n{{"name": "{function["name"]}", "arguments": {written}}}\n', TOOL_CALL_END]


def parse_arguments(text: str) -> Any:
    """Reads arguments, which OpenAI's wire has as JSON text. A text that is no object is kept."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        return value
    return text


def dump_json(value: Any, *, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    """Returns `json.dumps(value, ensure_ascii=..., sort_keys=...)`, and raises what that raises.

    No single call of C writes a long text, because it would keep the interpreter lock for as long.
    """
    if _is_small(value):
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    return "".join(_write_pieces(value, ensure_ascii, sort_keys))


def _is_small(value: Any) -> bool:
    """Tells whether a value is written fast. It looks no further than until it is large."""
    left = _SLICE_CHARS
    waiting = [value]
    while waiting and left >= 0:
        item = waiting.pop()
        left -= _CHARS_OF_A_VALUE
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return left >= 0


def _write_pieces(value: Any, ensure_ascii: bool, sort_keys: bool) -> Iterator[str]:
    if isinstance(value, str):
        yield '"'
        for begin in range(0, len(value), _SLICE_CHARS):
            yield json.dumps(value[begin : begin + _SLICE_CHARS], ensure_ascii=ensure_ascii)[1:-1]
        yield '"'
    elif isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
        before = "{"
        for name in sorted(value) if sort_keys else value:
            yield before
            yield from _write_pieces(name, ensure_ascii, sort_keys)
            yield ": "
            yield from _write_pieces(value[name], ensure_ascii, sort_keys)
            before = ", "
        yield "}"
    elif isinstance(value, list | tuple) and value:
        before = "["
        for item in value:
            yield before
            yield from _write_pieces(item, ensure_ascii, sort_keys)
            before = ", "
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
