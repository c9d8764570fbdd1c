"""This module reads trajectories in the Agent Trajectory Interchange Format (ATIF), ours and those of Harbor's agents.

Invariants:
- A step of the agent is one message of the assistant, and each result of its observation is a message that answers it.
- A call whose command stands in a block or a tag of the step's text, or is all of it, was read from that text. It is no
  call of a tool, and its result is a message of the user. A command that is a word of a sentence was called.
- Steps that were copied from an earlier trajectory, and steps that no model made, are context.
- Replies of our sub-agents, and those that summed the work up, are no part of the conversation: they answered others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from swe_rl.agent.atif import SUB_AGENT, SUMMARY
from swe_rl.files.tables import as_mapping
from swe_rl.imitation.exits import find_exits
from swe_rl.imitation.messages import read_arguments, read_message, read_tools
from swe_rl.imitation.record import Message, RecordedConversation, wrong_field
from swe_rl.imitation.verdict import find_instance, find_reward, lost_reward

_SOURCES = {"system": "system", "user": "user", "agent": "assistant"}


def is_atif(record: Mapping[str, Any]) -> bool:
    """Tells whether a record is a trajectory in ATIF."""
    return str(record.get("schema_version", "")).startswith("ATIF")


def read_atif(record: Mapping[str, Any], where: str) -> RecordedConversation:
    """Returns the conversation of a trajectory. Raises DataError."""
    steps = record.get("steps")
    if not isinstance(steps, list) or not steps:
        raise wrong_field(where, "steps", "is no list of steps", "ATIF has one object for each step")
    agent = as_mapping(record.get("agent"))
    tools = read_tools(agent.get("tool_definitions"), where, "agent.tool_definitions")
    offered = frozenset(tool["function"]["name"] for tool in tools)
    messages: list[Message] = []
    context: set[int] = set()
    statuses: dict[int, int | None] = {}
    for number, step in enumerate(steps):
        made, status = _read_step(step, offered, where, f"steps[{number}]")
        if _is_of_another(step):
            continue
        if step.get("is_copied_context") or step.get("llm_call_count") == 0:
            context.add(len(messages))
        statuses |= {len(messages) + place: status for place in range(1, len(made))}
        messages += made
    if not any(message["role"] == "assistant" for message in messages):
        raise wrong_field(where, "steps", "has no step of the agent", "Leave trajectories out that teach nothing")
    exits = find_exits(messages, statuses)
    extra = as_mapping(record.get("extra"))
    return RecordedConversation(
        where=where,
        messages=tuple(messages),
        tools=tools,
        instance_id=find_instance(record) or find_instance(extra),
        reward=find_reward(extra, where, "extra."),
        context=frozenset(context),
        failed=exits.failed,
        tells_exits=exits.are_told,
        is_worthless=lost_reward(extra),
    )


def _is_of_another(step: Mapping[str, Any]) -> bool:
    """Tells whether a step of our agents belongs to another conversation."""
    extra = as_mapping(step.get("extra"))
    return bool(extra.get(SUB_AGENT) or extra.get(SUMMARY))


def _read_step(step: Any, offered: Collection[str], where: str, name: str) -> tuple[list[Message], int | None]:
    """Returns the messages of a step, and the exit status that it tells. `offered` has the names of the tools."""
    if not isinstance(step, Mapping):
        raise wrong_field(where, name, "is no object", "ATIF has one object for each step")
    role = _SOURCES.get(str(step.get("source")))
    if role is None:
        source = step.get("source")
        raise wrong_field(where, f"{name}.source", f"is {source!r}", f"It has to be one of {', '.join(_SOURCES)}")
    text = step.get("message")
    said = {"role": role, "content": text, "reasoning_content": step.get("reasoning_content")}
    message = dict(read_message(said, where, name))
    results = _results_of(step)
    if role != "assistant":
        observed = [result for result in results if result.get("content")]
        return [message, *(_user_answer(result, where, name) for result in observed)], None
    calls = _read_calls(step, where, name)
    were_offered = any(call["function"]["name"] in offered for call in calls)
    from_text = not were_offered and all(_is_in_text(call, str(message["content"])) for call in calls)
    if calls and not from_text:
        message["tool_calls"] = calls
        answers = [_tool_answer(result, calls, place, where, name) for place, result in enumerate(results)]
    else:
        answers = [_user_answer(result, where, name) for result in results]
    status = as_mapping(step.get("extra")).get("exit_code")
    return [message, *answers], status if isinstance(status, int) else None


def _read_calls(step: Mapping[str, Any], where: str, name: str) -> list[dict[str, Any]]:
    calls = []
    listed = step.get("tool_calls")
    if listed and not isinstance(listed, list):
        raise wrong_field(where, f"{name}.tool_calls", "is no list", "ATIF has one object for each call")
    for number, call in enumerate(listed or ()):
        field = f"{name}.tool_calls[{number}]"
        if not isinstance(call, Mapping) or not isinstance(call.get("function_name"), str):
            raise wrong_field(where, f"{field}.function_name", "is missing", "ATIF's calls name their function")
        arguments = read_arguments(call.get("arguments"), where, f"{field}.arguments")
        function = {"name": call["function_name"], "arguments": arguments}
        calls.append({"id": str(call.get("tool_call_id")), "type": "function", "function": function})
    return calls


def _is_in_text(call: Mapping[str, Any], text: str) -> bool:
    command = call["function"]["arguments"].get("command")
    if not isinstance(command, str) or not command.strip():
        return False
    written = re.escape(command.strip())
    return re.search(rf"(?:\A|```[^\n`]*\n|>)\s*{written}\s*(?:\Z|```|</)", text) is not None


def _results_of(step: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    results = as_mapping(step.get("observation")).get("results")
    if not isinstance(results, list):
        return []
    return [result for result in results if isinstance(result, Mapping)]


def _tool_answer(
    result: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], place: int, where: str, name: str
) -> Message:
    content = result.get("content")
    field = f"{name}.observation.results[{place}]"
    of_call = result.get("source_call_id") or calls[min(place, len(calls) - 1)]["id"]
    function = next((call["function"]["name"] for call in calls if call["id"] == of_call), None)
    message = {"role": "tool", "content": content, "tool_call_id": of_call}
    if function:
        message["name"] = function
    return read_message(message, where, field)


def _user_answer(result: Mapping[str, Any], where: str, name: str) -> Message:
    return read_message({"role": "user", "content": result.get("content")}, where, f"{name}.observation")
