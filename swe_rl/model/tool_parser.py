"""This module splits a reply's text into reasoning, content and tool calls.

Invariants:
- Nothing the model says is an error: what cannot be parsed stays, verbatim, in the content.
- A reply without think block and tool call is its own content, character for character.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from swe_rl.errors import UserError
from swe_rl.files.tables import as_mapping

TOOL_PARSERS = ("hermes", "qwen3_coder", "own", "none")
_CALL_BEGIN = "<tool_call>"
_CALL_END = "</tool_call>"
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")
# A call of these keys alone has no arguments.
_NO_ARGUMENTS = frozenset({"name", "id", "type"})


class ToolParserError(UserError):
    """There is no tool parser of that name."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str  # This is a JSON object.


@dataclass(frozen=True, slots=True)
class ParsedReply:
    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


ToolParser = Callable[[str, Sequence[Mapping[str, Any]]], ParsedReply]


def check_tool_parser(name: str) -> str:
    """Returns `name`. Raises ToolParserError for an unknown one."""
    if name not in TOOL_PARSERS:
        raise ToolParserError(f"model.tool_parser={name} is not known; choose one of {', '.join(TOOL_PARSERS)}")
    return name


def make_tool_parser(name: str) -> ToolParser:
    """Returns the parser that `model.tool_parser` names. It reads a reply's text, given the tools that the request
    offered. Raises ToolParserError."""

    parsers: dict[str, ToolParser] = {
        "hermes": lambda text, tools: parse_reply(text, tools=bool(tools)),
        "qwen3_coder": parse_qwen3_coder,
        "none": lambda text, tools: parse_reply(text, tools=False),
    }
    return parsers[check_tool_parser(name)]


def parse_reply(text: str, *, tools: bool, reasoning: str | None = None) -> ParsedReply:
    """Parses a reply with hermes calls. If the request offered no `tools`, a `<tool_call>` is content like anything
    else. With `reasoning`, that of the reply was split off, and a think block in the text is content."""
    content = text
    if reasoning is None:
        reasoning, content = split_reasoning(text)
    if not tools:
        return ParsedReply(content, reasoning)
    begins = [match.start() for match in re.finditer(_CALL_BEGIN, content)]
    closes = [match.start() for match in re.finditer(_CALL_END, content)]
    tags = sorted(begins + closes)
    calls: list[ToolCall] = []
    kept: list[str] = []
    done = 0
    while (begin := _first_from(begins, done, -1)) >= 0:
        call, end = _read_hermes_call(content, begin, tags, closes)
        if call is None:
            kept.append(content[done:end])
        else:
            kept.append(content[done:begin])
            calls.append(call)
        done = end
    rest = "".join([*kept, content[done:]])
    return ParsedReply(rest.strip() if calls else content, reasoning, tuple(calls))


def _read_hermes_call(
    content: str, begin: int, tags: Sequence[int], closes: Sequence[int]
) -> tuple[ToolCall | None, int]:
    """Returns the call at a `<tool_call>` and where it ends, or None and where the text ends that is no call.

    `tags` has the places of all tags, `closes` those of `</tool_call>`. A call without one ends before the next call.
    """
    inside = begin + len(_CALL_BEGIN)
    start = inside
    while start < len(content) and content[start].isspace():
        start += 1
    if not content.startswith("{", start):
        # A text names the tag.
        return None, inside
    json_end = _find_json_end(content, start, tags)
    if json_end is not None:
        next_tag = _first_from(tags, json_end, len(content))
        end = json_end if content.startswith(_CALL_BEGIN, next_tag) else next_tag
        call = parse_call(content[start:end])
        if call is not None:
            return call, end + len(_CALL_END) * content.startswith(_CALL_END, end)
    close = _first_from(closes, inside, len(content))
    return None, min(close + len(_CALL_END), len(content))


def _find_json_end(content: str, start: int, tags: Sequence[int]) -> int | None:
    """Returns where the JSON object at `start` ends, or None if there is none. Tags before that end are in its texts:
    what is read has twice as many with each try, for an error takes time for all that was read."""
    first = bisect_left(tags, start)
    num_tags = 0
    while True:
        limit = len(content)
        if first + num_tags < len(tags):
            limit = tags[first + num_tags]
        try:
            _, length = json.JSONDecoder().raw_decode(content[start:limit])
        except json.JSONDecodeError as error:
            if limit == len(content) or not error.msg.startswith("Unterminated string"):
                return None
        except (ValueError, RecursionError):
            return None
        else:
            return start + length
        num_tags = 2 * num_tags + 1


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Returns (reasoning, content) of a reply that opens with a think block; a block cut off is all reasoning."""
    if not text.lstrip().startswith("<think>"):
        return None, text
    thought, closed, content = text.lstrip().removeprefix("<think>").partition("</think>")
    return thought.strip("\n"), content.lstrip("\n") if closed else ""


def parse_call(block: str) -> ToolCall | None:
    """Returns the call that a JSON object stands for, or None."""
    try:
        call: Any = json.loads(block, parse_constant=refuse_constant, parse_float=finite)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            return None
        given = [key for key in ("arguments", "parameters") if key in call]
        if len(given) > 1 or (not given and not _NO_ARGUMENTS.issuperset(call)):
            # Without its arguments it would be another call.
            return None
        arguments = call[given[0]] if given else {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=refuse_constant, parse_float=finite)
        if not isinstance(arguments, dict):
            return None
        return make_call(call["name"], arguments)
    except (ValueError, RecursionError):
        return None


def make_call(name: str, arguments: dict[str, Any]) -> ToolCall | None:
    """Returns the call, or None if it cannot be sent on: for a lone surrogate in its name, or what JSON cannot hold."""
    try:
        name.encode()
        return ToolCall(name, dump_arguments(arguments))
    except (TypeError, UnicodeEncodeError, RecursionError):
        return None


def dump_arguments(arguments: dict[str, Any]) -> str:
    """Writes arguments as JSON that any client reads. Many readers refuse half a character, also an escaped one."""
    return _HALF_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", json.dumps(arguments, ensure_ascii=False))


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def finite(written: str) -> float:
    """Returns the number. Raises ValueError for one such as 1e999, which is JSON although its value is not."""
    value = float(written)
    if math.isinf(value):
        refuse_constant(written)
    return value


# Qwen3-Coder's tool calls, written as tags: `<function=NAME><parameter=KEY>value</parameter></function>`, inside of
# <tool_call> or, as the model sometimes writes, without it.
# - What is not a call stays, verbatim, in the content: no character of a reply is in neither.
# - A value is the text between its tags without one newline at each side; the tool's schema says what type it has, and
#   what does not fit its type stays a text.
# - A closing tag ends what it names only where the format goes on behind it: a value may hold any tag.
# - Outside of `<tool_call>` only functions that were offered are calls.
# - The format: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat template and parser of the model card).
_FUNCTION_CLOSE = "</function>"
_PARAMETER_CLOSE = "</parameter>"
_WRAPPED = re.compile(r"<tool_call>\s*(?=<function=)")
_BARE = re.compile(r"<function=")
# The next call begins without an end of this one.
_UNCLOSED_CALL = re.compile(r"</function>\s*(?=<tool_call>\s*<function=)")
_WRAPPED_END = re.compile(r"</function>\s*</tool_call>")
_BARE_END = re.compile(r"</parameter>\s*</function>")
_NEXT_FUNCTION = re.compile(r"(?<=</function>)\s*(?=<function=)")
_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")


def parse_qwen3_coder(text: str, tools: Sequence[Mapping[str, Any]], reasoning: str | None = None) -> ParsedReply:
    """Parses a reply with calls as tags. `tools` are those that the request offered, in OpenAI's shape; without any,
    everything is content. With `reasoning`, that of the reply was split off, and a think block in the text is
    content."""
    content = text
    if reasoning is None:
        reasoning, content = split_reasoning(text)
    if not tools:
        return ParsedReply(content, reasoning)
    schemas = {tool.get("function", {}).get("name"): tool.get("function", {}) for tool in tools}
    calls: list[ToolCall] = []
    kept: list[str] = []
    done = 0
    for start, end, is_wrapped in _tagged(content):
        read = [_call(function, schemas) for function in _functions(content[start:end])]
        offered = [call for call in read if call is not None and (is_wrapped or call.name in schemas)]
        if offered and len(offered) == len(read):
            calls += offered
            kept.append(content[done:start])
            done = end
    rest = "".join([*kept, content[done:]])
    return ParsedReply(rest.strip() if calls else content, reasoning, tuple(calls))


def _tagged(content: str) -> list[tuple[int, int, bool]]:
    """Returns where calls begin and end, and whether they are inside of `<tool_call>`, one behind the other."""
    wrapped = [match.start() for match in _WRAPPED.finditer(content)]
    functions = [match.start() for match in _BARE.finditer(content)]
    unclosed = [match.end() for match in _UNCLOSED_CALL.finditer(content)]
    places: list[tuple[int, int, bool]] = []
    done = 0
    while (index := bisect_left(functions, done)) < len(functions):
        first = functions[index]
        next_wrapped = _first_from(wrapped, done, len(content))
        is_wrapped = next_wrapped < first
        if is_wrapped:
            start = next_wrapped
        else:
            start = first
        if is_wrapped:
            close = content.find(_CALL_END, start)
            if close < 0:
                after = len(content)
            else:
                after = _first_from(wrapped, close, len(content))
            limit = min(after, _first_from(unclosed, start + 1, len(content)))
        else:
            close = content.find(_FUNCTION_CLOSE, start)
            if close < 0:
                after = len(content)
            else:
                after = _first_from(functions, close, len(content))
            limit = min(after, next_wrapped)
        end = _end_of_call(content, start, limit, is_wrapped)
        places.append((start, end, is_wrapped))
        done = max(end, start + 1)
    return places


def _first_from(places: Sequence[int], start: int, otherwise: int) -> int:
    index = bisect_left(places, start)
    if index < len(places):
        return places[index]
    return otherwise


def _end_of_call(content: str, start: int, limit: int, is_wrapped: bool) -> int:
    """Returns the last place before the next call at which the format ends one: tags before it belong to a value."""
    ends = [match.end() for match in (_WRAPPED_END if is_wrapped else _BARE_END).finditer(content, start, limit)]
    if ends:
        return ends[-1]
    if is_wrapped:
        close = _CALL_END
    else:
        close = _FUNCTION_CLOSE
    place = content.find(close, start, limit)
    if place < 0:
        return limit
    return place + len(close)


def _functions(tagged: str) -> list[str]:
    """Returns the functions of a call, without the tags around them."""
    return _NEXT_FUNCTION.split(tagged.strip().removeprefix("<tool_call>").removesuffix(_CALL_END).strip())


def _call(function: str, schemas: Mapping[str, Any]) -> ToolCall | None:
    """Returns the call, or None if something of the text is neither a name nor a parameter."""
    opening = _FUNCTION.match(function)
    name = ""
    if opening:
        name = opening[1].strip()
    if opening is None or not name:
        return None
    properties = read_properties(schemas.get(name))
    body = function[opening.end() :].rstrip().removesuffix(_FUNCTION_CLOSE)
    written = _parameters(body, properties)
    if written is None:
        return None
    arguments = {key: typed_value(_trimmed(value), properties.get(key)) for key, value in written.items()}
    return make_call(name, arguments)


def _parameters(body: str, properties: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns the texts between the tags by key, or None if there is text that belongs to no parameter."""
    opening = _PARAMETER.match(body.lstrip())
    if opening is None:
        if body.strip():
            return None
        return {}
    body = body.lstrip()
    written: dict[str, str] = {}
    key = opening[1].strip()
    value_start = opening.end()
    for opening in _PARAMETER.finditer(body, value_start):
        next_key = opening[1].strip()
        if next_key == key or next_key in written or not _goes_on(body, opening.start(), next_key, properties):
            # The tag is text of the value.
            continue
        written[key] = _without_end(body[value_start : opening.start()])
        key = next_key
        value_start = opening.end()
    written[key] = _without_end(body[value_start:])
    return written


def _goes_on(body: str, place: int, next_key: str, properties: Mapping[str, Any]) -> bool:
    """Tells whether another parameter begins: the one before has its end, or lacks it and the tool has the next one."""
    while place > 0 and body[place - 1].isspace():
        place -= 1
    return body.endswith(_PARAMETER_CLOSE, 0, place) or not properties or next_key in properties


def _without_end(raw: str) -> str:
    """Returns a value without the closing tag at its end; a closing tag before that is its text."""
    value, tag, rest = raw.rpartition(_PARAMETER_CLOSE)
    if tag and not rest.strip():
        return value
    return raw


def read_properties(function: Any) -> Mapping[str, Any]:
    """Returns the parameters that a function's schema declares, by name."""
    parameters = as_mapping(as_mapping(function).get("parameters"))
    return as_mapping(parameters.get("properties"))


def _trimmed(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def typed_value(text: str, schema: Any) -> Any:
    """Returns a value that stands between tags: what the schema says that it is, or its text."""
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        if "null" in kinds and text.strip() == "null":
            return None
        return text
    # The chat template writes null so.
    if "null" in kinds and text.strip() == "None":
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
    """Returns the JSON types that a parameter may have, or none if its schema does not say. The schema is a client's:
    it may be any JSON."""
    kinds = set[str]()
    left = [schema]
    while left:
        if isinstance(choice := left.pop(), Mapping):
            kind = choice.get("type")
            choices = choice.get("anyOf") or choice.get("oneOf")
            kinds.update(name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str))
            if isinstance(choices, list):
                left += choices
    return kinds
