"""This module reads rows of chats: OpenAI's messages with tools, ShareGPT, published trajectories as SWE-smith's.

Invariants:
- The list of messages is in the first of the columns `messages`, `conversations` and `trajectory` that a row has. It
  may be the JSON of the list, as SWE-smith publishes it.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.imitation.exits import find_exits
from swe_rl.imitation.messages import find_context, parse_json, read_messages, read_tools
from swe_rl.imitation.record import RecordedConversation
from swe_rl.imitation.verdict import find_instance, find_reward

COLUMNS = ("messages", "conversations", "trajectory")


def column_of(record: Mapping[str, Any]) -> str | None:
    """Returns the name of the column that has the messages; None where no column has."""
    return next((name for name in COLUMNS if isinstance(record.get(name), str | list | tuple)), None)


def read_chat(record: Mapping[str, Any], where: str) -> RecordedConversation:
    """Returns the conversation of a row. Raises DataError."""
    name = column_of(record)
    assert name is not None
    values = record[name]
    if isinstance(values, str):
        values = parse_json(values, where, name)
    messages = read_messages(values, where, name)
    exits = find_exits(messages)
    return RecordedConversation(
        where=where,
        messages=messages,
        tools=read_tools(record.get("tools"), where),
        instance_id=find_instance(record),
        reward=find_reward(record, where),
        context=find_context(values),
        failed=exits.failed,
        tells_exits=exits.are_told,
    )
