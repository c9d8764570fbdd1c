"""Synthetic conversations of an agent: what a model says, character for character, and what it is answered.

Invariants:
- What the model says is written as the model's format has it; `rewritten` alone writes it otherwise, as models do.
- Messages of an assistant are what the gateway makes of that text: its tool parser's.
"""

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from swe_rl.model.tool_parser import ParsedReply, make_tool_parser

TURNS = 8
PARSERS = {"qwen": "hermes", "qwen_plain": "hermes", "qwen_coder": "qwen3_coder"}  # by chat template
_PATHS = ("src/größe.py", "lib/核心.py", "a b/<x>&\"y\".txt")  # fmt: skip
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "\nRuns a command: `ls -la`, \"grep\" …\n",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": " What to run. "},
                    "background": {"type": "boolean", "default": False},
                    "timeout_s": {"type": ["number", "null"], "minimum": 0.5, "examples": [1, 2.5, None]},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "submit", "strict": True}},
    {
        "type": "function",
        "function": {"name": "edit", "description": "", "parameters": {"properties": {"lines": {"items": {}}}}},
    },
)  # fmt: skip


class Kind(Enum):
    """How the model asks for a command and how it is answered."""

    text = "text"  # a block in its text, answered as user
    call = "call"  # one call and no text, answered as tool
    text_and_call = "text and call"
    two_calls = "two calls"
    format_error = "call, one format error"  # in the middle a reply without a call, answered as user
    rewritten = "call, written otherwise"  # compact JSON; `true` where the format has `True`

    @property
    def has_tools(self) -> bool:
        return self is not Kind.text

    @property
    def observations(self) -> str:
        return "user" if self is Kind.text else "tool"


KINDS = tuple(Kind)


def said(template: str, kind: Kind, turn: int, *, thinking: bool) -> str:
    """The model's words in turn `turn` of a conversation, without end marker."""
    block = f"<think>\nTurn {turn}: 看 {_PATHS[turn % 3]}.\n\nThen on.\n</think>\n\n" if thinking else ""
    text = f"I look at {_PATHS[turn % 3]}."
    if kind is Kind.text or (kind is Kind.format_error and turn == TURNS // 2):
        return f"{block}{text}\n\n```bash\nls '{_PATHS[turn % 3]}'\n```"
    arguments = {"command": f"cat '{_PATHS[turn % 3]}'\n  | head -{turn}\n", "background": turn % 2 == 0}
    calls = [_call(template, kind, {**arguments, **more}) for more in _more(kind)]
    head = text + _gap(template) if kind is Kind.text_and_call else ""
    return block + head + "\n".join(calls)


def opening() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "Fix bugs.\n"},
        {"role": "user", "content": "  The größe is wrong <here>.\n\n{\"a\": 1}\n"},
    ]  # fmt: skip


def conversation(template: str, kind: Kind, *, thinking: bool) -> list[dict[str, Any]]:
    """System, task, and TURNS times a reply and its answers, as a client holds them."""
    messages = opening()
    for turn in range(TURNS):
        reply = answered(template, kind, said(template, kind, turn, thinking=thinking))
        messages += [reply, *heard(kind, reply, turn)]
    return messages


def answered(template: str, kind: Kind, text: str) -> dict[str, Any]:
    """The message that the gateway answers with."""
    parsed: ParsedReply = make_tool_parser(PARSERS[template])(text, TOOLS if kind.has_tools else ())
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content is not None:
        message["reasoning_content"] = parsed.reasoning_content
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for index, call in enumerate(parsed.tool_calls)
        ]
    return message


def heard(kind: Kind, reply: Mapping[str, Any], turn: int) -> list[dict[str, Any]]:
    """What the agent answers: an observation a call, a reminder where there was none."""
    if kind is Kind.text:
        return [{"role": "user", "content": f"\ndef größe():\n    return {turn}\n\n"}]
    if not reply.get("tool_calls"):
        return [{"role": "user", "content": "Call one of the tools."}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"line {turn}\n<b>&amp;\n" if turn % 3 else ""}
        for call in reply["tool_calls"]
    ]


def _more(kind: Kind) -> list[dict[str, Any]]:
    return [{}, {"timeout_s": 2.5}] if kind is Kind.two_calls else [{}]


def _gap(template: str) -> str:
    return "\n\n" if template == "qwen_coder" else "\n"


def _call(template: str, kind: Kind, arguments: Mapping[str, Any]) -> str:
    other = kind is Kind.rewritten
    if template == "qwen_coder":
        written = "".join(
            f"<parameter={key}>\n{str(value).lower() if other and value in (True, False) else value}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function=bash>\n{written}</function>\n</tool_call>"
    written = json.dumps(arguments, ensure_ascii=False, separators=(",", ":") if other else (", ", ": "))
    return f'<tool_call>\n{{"name": "bash", "arguments": {written}}}\n</tool_call>'
