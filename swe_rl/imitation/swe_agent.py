"""This module reads the trajectory files of SWE-agent (`INSTANCE.traj`).

Invariants:
- What the model saw before its last reply is the last step's `query` (releases before 1.1 call it `messages`), and that
  reply is the step's `response`. A file without queries has all messages in `history`.
- A reply that SWE-agent refused (it was malformed, or its command is blocked) ends the query that asks for another one,
  with the words of the refusal, and is not learned: its calls are noted nowhere.
- Steps have no calls of tools: those of the last reply are in `history`, where it is the last message of the assistant.
- SWE-agent ends an attempt without the model by a step with words of its own, which no model said.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.imitation.exits import find_exits
from swe_rl.imitation.messages import find_context, read_messages, read_tools
from swe_rl.imitation.record import RecordedConversation, wrong_field
from swe_rl.imitation.verdict import find_instance, find_reward, instance_of_file

_QUERIES = ("query", "messages")
_OWN_WORDS = ("Exit due to ", "Exiting due to ")


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
        instance_id=find_instance(record) or instance_of_file(where),
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
    listed = record.get("history")
    history: list[Any] = listed if isinstance(listed, list) else []
    history = list(takewhile(lambda item: not _is_programs(as_mapping(item)), history))
    for number, step in reversed(list(enumerate(steps))):
        reply = _reply_of(step, history)
        query = next((name for name in _QUERIES if _is_query(step.get(name))), None)
        # A reply without an action was refused, or SWE-agent wrote it itself.
        if reply and query and step.get("action"):
            return [*_mark_refused(step[query]), reply], f"trajectory[{number}].{query}"
    if history:
        return history, "history"
    raise wrong_field(where, "history", "is missing", "Give the file as SWE-agent wrote it")


def _is_query(value: Any) -> bool:
    """Tells whether a model was asked this. A step without a model has a list of one empty object."""
    return isinstance(value, list) and any(value)


def _mark_refused(query: Sequence[Any]) -> Sequence[Any]:
    """Returns a query in which the reply that SWE-agent refused before has the weight 0.

    Every accepted reply has an action. A refused one has none, and is the last but one message.
    """
    refused = as_mapping(query[-2]) if len(query) > 1 else {}
    if refused.get("role") != "assistant" or "action" in refused:
        return query
    return [*query[:-2], {**refused, "weight": 0}, query[-1]]


def _is_programs(item: Mapping[str, Any]) -> bool:
    """Tells whether SWE-agent wrote a message of its history, and no model."""
    return not item.get("action") and str(item.get("content")).startswith(_OWN_WORDS)


def _reply_of(step: Mapping[str, Any], history: Sequence[Any]) -> Mapping[str, Any] | None:
    """Returns the message of a step's reply: the history's last one where it is that, as it has the calls.

    Returns None where the step has no reply.
    """
    replies = [item for item in history if isinstance(item, Mapping) and item.get("role") == "assistant"]
    text = step.get("response") or ""
    for said in replies[-1:]:
        is_it = (said.get("content") or "") == text and (said.get("action") or "") == (step.get("action") or "")
        if is_it and (text or said.get("tool_calls")):
            return said
    if not text:
        return None
    return {"role": "assistant", "content": text, "tool_calls": step.get("tool_calls")}
