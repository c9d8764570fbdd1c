"""Qwen3-Coder's tool calls, written as tags: `<function=NAME><parameter=KEY>value</parameter></function>`.

Invariants:
- Never raises: what is not a call stays, verbatim, in the content.
- A value is the text between its tags without one newline at each side; the tool's schema says what type it has, and
  what does not fit its type stays a text.
- Outside of `<tool_call>` only functions that were offered are calls.
- The format: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat template and parser of the model card).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.model.tool_parser import ParsedReply, ToolCall, dump_arguments, refuse_constant, split_reasoning

# Inside of <tool_call> or, as the model sometimes writes, without it.
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|(?=</tool_call>)|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>\s*(<function=.*?)(?:</tool_call>|\Z)|(<function=.*?(?:</function>|\Z))", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|(?=</function>)|\Z)", re.DOTALL
)  # fmt: skip


def parse_qwen3_coder(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedReply:
    """`tools`: those that the request offered, in OpenAI's shape; without any, everything is content."""
    reasoning, content = split_reasoning(text)
    if not tools:
        return ParsedReply(content, reasoning)
    schemas = {one.get("function", {}).get("name"): one.get("function", {}) for one in tools}
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        wrapped, bare = match.group(1), match.group(2)
        functions = [_call(one.group(1), one.group(2), schemas) for one in _FUNCTION.finditer(wrapped or bare)]
        found = [call for call in functions if call is not None and (wrapped or call.name in schemas)]
        if not found or len(found) != len(functions):
            return match.group(0)
        calls.extend(found)
        return ""

    rest = _CALL.sub(take, content)
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
    except UnicodeEncodeError:
        return None
    return ToolCall(name, dump_arguments(arguments)) if name else None


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
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        return int(value)
    return value


def _kinds(schema: Any) -> frozenset[str]:
    """The JSON types that a parameter may have; none where its schema does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    kind = schema.get("type")
    named = [kind] if isinstance(kind, str) else list(kind) if isinstance(kind, Sequence) else []
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return frozenset(str(one) for one in named).union(*map(_kinds, choices))
