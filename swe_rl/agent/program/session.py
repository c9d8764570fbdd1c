"""This module reads turns from the conversation that a program prints, a line of JSON each.

Invariants:
- Reading has no effects and never raises, whatever is printed: the model has a hand in it.
"""

import json
from collections.abc import Iterator
from typing import Any

from swe_rl.agent.agent import Turn
from swe_rl.agent.observation import shorten_text
from swe_rl.files.lines import lines_of


def read_session(output: str, max_observation_chars: int) -> list[Turn]:
    """Returns one turn for each reply, with the results of its tools as observation; messages are as Anthropic's API
    has them. A reply may come as several messages of the assistant, one for each kind of block. Anything else that is
    printed between the lines is passed over, and nothing raises."""
    turns: list[Turn] = []
    # True means that the message before was of the assistant.
    goes_on = False
    for message in _iter_messages(output):
        content = message.get("content")
        assistant = message.get("role") == "assistant"
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        if assistant:
            if not goes_on:
                turns.append(Turn(len(turns), "", None, None))
            _add_message(turns[-1], parts)
        elif turns:
            results = [_join_text(part.get("content")) for part in parts if part.get("type") == "tool_result"]
            joined = "\n".join([*filter(None, [turns[-1].observation]), *results])
            turns[-1].observation = shorten_text(joined, max_observation_chars) if results else turns[-1].observation
        goes_on = assistant
    return turns


def _add_message(turn: Turn, parts: list[dict[str, Any]]) -> None:
    turn.message += "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    calls = [_describe_call(part) for part in parts if part.get("type") == "tool_use"]
    turn.command = "\n".join([*filter(None, [turn.command]), *calls]) or None


def json_lines(output: str) -> Iterator[dict[str, Any]]:
    """Yields the lines that are objects of JSON, in their order. Anything else that is printed between them is passed
    over."""
    for line in lines_of(output, ends=False):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _iter_messages(output: str) -> Iterator[dict[str, Any]]:
    for event in json_lines(output):
        message = event.get("message")
        if event.get("type") in ("assistant", "user") and isinstance(message, dict):
            yield message


def _describe_call(part: dict[str, Any]) -> str:
    return f"{part.get('name')} {json.dumps(part.get('input'), ensure_ascii=False)}"


def _join_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
