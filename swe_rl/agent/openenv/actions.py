"""Turns what a model says into actions of an OpenEnv server, and what the server shows into text.

Invariants:
- Two kinds of servers are known. Those with tools list them, and an action calls one. All others have one form of an
  action, which is offered as the one tool `act`.
- A reply without a call may write the action as JSON, or as plain text where the action has one required field of text.
- Reading never raises for what a model wrote: a reply that is no action comes back with the reason.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.agent.client import CalledTool, ChatReply
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.played import Asked, read_arguments

LIST_TOOLS = {"type": "list_tools"}
_ACT = "act"
# The server fills these fields itself, and they tell the model nothing.
_OWN_FIELDS = frozenset({"metadata", "done", "reward"})
_FENCED = re.compile(r"```[a-z]*\s*\n(.*?)\n?```", re.DOTALL)


class Actions:
    """Knows the form of the actions of one server. `tools` are offered to the model, in OpenAI's shape."""

    def __init__(self, schema: Mapping[str, Any], listed: Sequence[Mapping[str, Any]] | None) -> None:
        self._has_tools = listed is not None
        self._required = [name for name in schema.get("required") or () if name not in _OWN_FIELDS]
        fields = schema.get("properties")
        self._fields: Mapping[str, Any] = fields if isinstance(fields, Mapping) else {}
        if listed is None:
            self.tools = [_function(_ACT, "Does one action in the environment.", _without_own_fields(schema))]
        else:
            self.tools = [_listed_function(tool) for tool in listed]

    def read(self, reply: ChatReply) -> list[Asked]:
        """Returns the actions of a reply, in their order. There is at least one entry."""
        if reply.tool_calls:
            return [self._of_call(call) for call in reply.tool_calls]
        if self._has_tools:
            return [Asked(None, "Your reply calls no tool. Call one of the tools.")]
        return [self._of_text(reply.content)]

    def _of_call(self, call: CalledTool) -> Asked:
        arguments = read_arguments(call)
        if isinstance(arguments, Asked):
            return arguments
        if self._has_tools:
            action = {"type": "call_tool", "tool_name": call.name, "arguments": arguments}
            return Asked(action, call_id=call.call_id)
        if call.name != _ACT:
            return Asked(None, f"There is no tool {call.name}. The only one is {_ACT}.", call.call_id)
        return Asked(arguments, call_id=call.call_id)

    def _of_text(self, content: str) -> Asked:
        text = content.strip()
        fenced = _FENCED.findall(text)
        written = fenced[-1] if fenced else text
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return Asked(value)
        field = self._only_text_field()
        if field is not None and text:
            return Asked({field: text})
        return Asked(None, f"Your reply has no action. Call the tool {_ACT}, or write the action as one JSON object.")

    def _only_text_field(self) -> str | None:
        if len(self._required) != 1:
            return None
        name = self._required[0]
        field = self._fields.get(name)
        is_text = isinstance(field, Mapping) and field.get("type") == "string" and "enum" not in field
        return name if is_text else None


def show_observation(observation: Mapping[str, Any], max_chars: int) -> str:
    """Returns an observation as text: its only text as it is, what a tool gave, or else JSON."""
    shown = {name: value for name, value in observation.items() if name not in _OWN_FIELDS and value is not None}
    if set(shown) == {"tool_name", "result"}:
        text = _tool_text(shown["result"])
    elif len(shown) == 1 and isinstance(next(iter(shown.values())), str):
        text = str(next(iter(shown.values())))
    else:
        text = json.dumps(shown, ensure_ascii=False)
    return shorten_text(text, max_chars)


def _tool_text(result: Any) -> str:
    """Returns what a tool gave: the texts of MCP's content, or the value as JSON."""
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list):
        texts = [
            str(part["text"])
            for part in content
            if isinstance(part, dict) and part.get("type") == "text" and "text" in part
        ]
        if len(texts) == len(content) and texts:
            return "\n".join(texts)
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False)


def _function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def is_tool(listed: Any) -> bool:
    """Tells whether a server lists a tool in OpenEnv's form: with a name, and the schema of its arguments if any."""
    if not isinstance(listed, dict) or not isinstance(listed.get("name"), str):
        return False
    return isinstance(listed.get("input_schema") or listed.get("inputSchema") or {}, dict)


def _listed_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    return _function(str(tool["name"]), str(tool.get("description") or ""), schema)


def _without_own_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    fields = schema.get("properties")
    kept = {name: field for name, field in (fields or {}).items() if name not in _OWN_FIELDS}
    return {**schema, "properties": kept}
