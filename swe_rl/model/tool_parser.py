"""From a reply's text to reasoning, content and tool calls.

Invariants:
- Nothing the model says is an error: what cannot be parsed stays, verbatim, in the content.
- A reply without think block and tool call is its own content, character for character.
"""

import json
import math
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
        call: Any = json.loads(block, parse_constant=refuse_constant, parse_float=finite)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            return None
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=refuse_constant, parse_float=finite)
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


def finite(written: str) -> float:
    """1e999 is JSON, and its value is not."""
    value = float(written)
    if math.isinf(value):
        refuse_constant(written)
    return value


# Inside of <tool_call> or, as the model sometimes writes, without it.
# Qwen3-Coder's tool calls, written as tags: `<function=NAME><parameter=KEY>value</parameter></function>`.
# - Never raises: what is not a call stays, verbatim, in the content.
# - A value is the text between its tags without one newline at each side; the tool's schema says what type it has, and
#   what does not fit its type stays a text.
# - Outside of `<tool_call>` only functions that were offered are calls.
# - The format: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat template and parser of the model card).
_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*?)(?:</function>|(?=</tool_call>)|\Z)", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>\s*(<function=.*?)(?:</tool_call>|\Z)|(<function=.*?(?:</function>|\Z))", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^<>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|(?=</function>)|\Z)", re.DOTALL
)  # fmt: skip


def parse_qwen3_coder(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedReply:
    """`tools`: those that the request offered, in OpenAI's shape; without any, everything is content."""
    reasoning, content = split_reasoning(text)
    if not tools:
        return ParsedReply(content, reasoning)
    schemas = {tool.get("function", {}).get("name"): tool.get("function", {}) for tool in tools}
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        wrapped, bare = match.group(1), match.group(2)
        functions = [_call(tag.group(1), tag.group(2), schemas) for tag in _FUNCTION.finditer(wrapped or bare)]
        offered = [call for call in functions if call is not None and (wrapped or call.name in schemas)]
        if not offered or len(offered) != len(functions):
            return match.group(0)
        calls.extend(offered)
        return ""

    rest = _TAGGED.sub(take, content)
    return ParsedReply(rest.strip() if calls else content, reasoning, tuple(calls))


def _call(name: str, body: str, schemas: Mapping[str, Any]) -> ToolCall | None:
    name = name.strip()
    properties = _properties(schemas.get(name))
    arguments = {
        match.group(1).strip(): _value(_trimmed(match.group(2)), properties.get(match.group(1).strip()))
        for match in _PARAMETER.finditer(body)
    }
    try:
        name.encode()  # a lone surrogate cannot be sent on
        return ToolCall(name, dump_arguments(arguments)) if name else None
    except (UnicodeEncodeError, RecursionError):
        return None


def _properties(function: Any) -> Mapping[str, Any]:
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _trimmed(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def _value(text: str, schema: Any) -> Any:
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        return None if "null" in kinds and text.strip() == "null" else text
    if "null" in kinds and text.strip() == "None":  # so the chat template writes it
        return None
    if "boolean" in kinds and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        return int(value)
    return value


def _kinds(schema: Any) -> set[str]:
    """The JSON types that a parameter may have; none where its schema does not say. Any JSON may stand for one."""
    kinds, left = set[str](), [schema]
    while left:
        if isinstance(choice := left.pop(), Mapping):
            kind, choices = choice.get("type"), choice.get("anyOf") or choice.get("oneOf")
            kinds.update(name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str))
            left += choices if isinstance(choices, list) else []
    return kinds
