"""This module reads the trajectory files of SWE-agent (`INSTANCE.traj`).

Invariants:
- What the model saw before its last reply is the last step's `query` (releases before 1.1 call it `messages`), and that
  reply is the step's `response`. A file without queries has all messages in `history`.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.imitation.exits import find_exits
from swe_rl.imitation.messages import find_context, read_messages, read_tools
from swe_rl.imitation.record import RecordedConversation, wrong_field
from swe_rl.imitation.verdict import find_instance, find_reward

_QUERIES = ("query", "messages")


def is_swe_agent(record: Mapping[str, Any]) -> bool:
    """Tells whether a record is a trajectory of SWE-agent: it has a history, or its steps have actions.

    The files of demonstrations that SWE-agent ships have a history alone.
    """
    if isinstance(record.get("history"), list):
        return True
    steps = record.get("trajectory")
    return isinstance(steps, list) and bool(steps) and isinstance(steps[0], Mapping) and "action" in steps[0]


def read_swe_agent(record: Mapping[str, Any], where: str) -> RecordedConversation:
    """Returns the conversation of a trajectory. Raises DataError."""
    values, name = _messages_of(record, where)
    messages = read_messages(values, where, name)
    exits = find_exits(messages)
    info = record.get("info")
    noted = as_mapping(info)
    reward = find_reward(record, where)
    return RecordedConversation(
        where=where,
        messages=messages,
        tools=read_tools(record.get("tools"), where),
        instance_id=find_instance(record) or PurePath(where).name.partition(".traj")[0],
        reward=find_reward(noted, where, "info.") if reward is None else reward,
        context=find_context(values),
        failed=exits.failed,
        tells_exits=exits.are_told,
    )


def _messages_of(record: Mapping[str, Any], where: str) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Returns the messages, and the name of the field that they are from."""
    listed = record.get("trajectory")
    if isinstance(listed, list):
        steps = [step for step in listed if isinstance(step, Mapping)]
    else:
        steps = []
    for number, step in reversed(list(enumerate(steps))):
        for query in _QUERIES:
            if isinstance(step.get(query), list) and step[query] and step.get("response"):
                return [*step[query], _reply_of(step)], f"trajectory[{number}].{query}"
    history = record.get("history")
    if isinstance(history, list) and history:
        return history, "history"
    raise wrong_field(where, "history", "is missing", "Give the file as SWE-agent wrote it")


def _reply_of(step: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "assistant", "content": step["response"], "tool_calls": step.get("tool_calls")}
