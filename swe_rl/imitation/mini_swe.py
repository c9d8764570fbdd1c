"""This module reads the trajectory files of mini-swe-agent (`INSTANCE.traj.json`), of both of its formats.

Invariants:
- A command's status is in the note `extra` of the message that answers it, or in that message's text.
- Without the name of the format a record is one only if it says how an attempt ended: rows of chats have an `info` of
  their own.
- A reply that could not be read (`FormatError`) failed. Since release 2 it is not among the messages: what it was
  answered then says nothing of the reply before.
- The last message, of role `exit`, is no message of the chat.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.imitation.exits import find_exits
from swe_rl.imitation.messages import find_context, read_messages, read_tools
from swe_rl.imitation.record import RecordedConversation, wrong_field
from swe_rl.imitation.verdict import find_instance, find_reward, instance_of_file, lost_reward

_NO_MESSAGES = ("exit",)
_UNREAD = "FormatError"
_ENDS = ("exit_status", "submission")
# mini-swe-agent offers this tool to models that call tools, and notes it nowhere in the file.
BASH_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
            "required": ["command"],
        },
    },
}


def is_mini_swe(record: Mapping[str, Any]) -> bool:
    """Tells whether a record is a trajectory of mini-swe-agent."""
    if str(record.get("trajectory_format", "")).startswith("mini-swe-agent"):
        return True
    info = as_mapping(record.get("info"))
    return isinstance(record.get("messages"), list) and any(name in info for name in _ENDS)


def read_mini_swe(record: Mapping[str, Any], where: str) -> RecordedConversation:
    """Returns the conversation of a trajectory. Raises DataError."""
    values = record.get("messages")
    if not isinstance(values, list):
        raise wrong_field(where, "messages", "is no list of messages", "Give the file as mini-swe-agent wrote it")
    values = [value for value in values if not (isinstance(value, Mapping) and value.get("role") in _NO_MESSAGES)]
    messages = read_messages(values, where, "messages")
    exits = find_exits(messages, _list_statuses(values))
    info = record.get("info")
    noted = as_mapping(info)
    called = {call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    tools = read_tools(record.get("tools"), where)
    if not tools and called == {"bash"}:
        tools = (BASH_TOOL,)
    return RecordedConversation(
        where=where,
        messages=messages,
        tools=tools,
        instance_id=find_instance(record) or find_instance(noted) or instance_of_file(where),
        reward=_reward_of(record, noted, where),
        context=find_context(values),
        failed=exits.failed,
        tells_exits=exits.are_told,
        is_worthless=lost_reward(record),
    )


def _list_statuses(values: Sequence[Mapping[str, Any]]) -> dict[int, int | None]:
    """Returns the statuses that notes tell, by the number of the message that has the note."""
    statuses: dict[int, int | None] = {}
    role_before = None
    for number, value in enumerate(values):
        extra = as_mapping(value.get("extra"))
        is_unread = extra.get("interrupt_type") == _UNREAD and role_before == "assistant"
        statuses[number] = 1 if is_unread else _status_in(extra)
        role_before = value.get("role")
    return statuses


def _status_in(extra: Mapping[str, Any]) -> int | None:
    status = extra.get("returncode")
    if not isinstance(status, int):
        return None
    return status


def _reward_of(record: Mapping[str, Any], info: Mapping[str, Any], where: str) -> float | None:
    reward = find_reward(record, where)
    if reward is None:
        return find_reward(info, where, "info.")
    return reward
