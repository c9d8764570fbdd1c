"""From a reply's text to reasoning, content and tool calls.

Invariants:
- Nothing the model says is an error: what cannot be parsed stays, verbatim, in the content.
- A reply without think block and tool call is its own content, character for character.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from swe_rl.errors import UserError

TOOL_PARSERS = ("hermes", "qwen3_coder", "none")
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ToolParserError(UserError):
    """There is no tool parser of that name."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class ParsedReply:
    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


ToolParser = Callable[[str, Sequence[Mapping[str, Any]]], ParsedReply]


def check_tool_parser(name: str) -> str:
    """Returns `name`. Raises ToolParserError."""
    if name not in TOOL_PARSERS:
        raise ToolParserError(f"model.tool_parser={name} is not known; choose one of {', '.join(TOOL_PARSERS)}")
    return name


def make_tool_parser(name: str) -> ToolParser:
    """Of `model.tool_parser`: from a reply's text and the tools that the request offered. Raises ToolParserError."""
    from swe_rl.model.tool_parser_qwen3_coder import parse_qwen3_coder

    parsers: dict[str, ToolParser] = {
        "hermes": lambda text, tools: parse_reply(text, tools=bool(tools)),
        "qwen3_coder": parse_qwen3_coder,
        "none": lambda text, tools: parse_reply(text, tools=False),
    }
    return parsers[check_tool_parser(name)]


def parse_reply(text: str, *, tools: bool) -> ParsedReply:
    """`tools`: the request offered some; without, a `<tool_call>` is content like anything else."""
    reasoning, content = split_reasoning(text)
    if not tools:
        return ParsedReply(content, reasoning)
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        call = _parse_call(match.group(1))
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    rest = _CALL.sub(take, content)
    return ParsedReply(rest.strip() if calls else content, reasoning, tuple(calls))


def split_reasoning(text: str) -> tuple[str | None, str]:
    """(reasoning, content) of a reply that opens with a think block; a block cut off is all reasoning."""
    if not text.lstrip().startswith("<think>"):
        return None, text
    thought, closed, content = text.lstrip().removeprefix("<think>").partition("</think>")
    return thought.strip("\n"), content.lstrip("\n") if closed else ""


def _parse_call(block: str) -> ToolCall | None:
    try:
        call: Any = json.loads(block, parse_constant=refuse_constant)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            return None
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=refuse_constant)
        if not isinstance(arguments, dict):
            return None
        call["name"].encode()  # a lone surrogate cannot be sent on
        return ToolCall(call["name"], dump_arguments(arguments))
    except (ValueError, RecursionError):
        return None


def dump_arguments(arguments: dict[str, Any]) -> str:
    written = json.dumps(arguments, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(arguments)
    return written


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
