"""This module writes an attempt in the Agent Trajectory Interchange Format (ATIF), which Harbor and others read.

Invariants:
- Every turn is one agent step: what the model said, what it called, and what it was answered as the results. A command
  that an agent read from the text is a call of `bash`, and so is that of a turn whose messages nobody kept.
- The turns of sub-agents stand where they were taken, and `extra` has the number of their sub-agent. So do those that
  wrote a summary, and `extra` says what became of it.
- Steps are counted from 1. What we do not know (prices, tokens of a single step) is left out.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.agent.agent import AgentResult, Turn
from swe_rl.files.tables import as_mapping
from swe_rl.version import __version__

SCHEMA = "ATIF-v1.7"
# These are our keys of a step's `extra`.
SUB_AGENT = "sub_agent"
SUMMARY = "compaction_summary"
_OPENING = ("system", "user")


@dataclass(frozen=True, slots=True)
class _Reply:
    """Holds an assistant's message, and the texts that its calls were answered, by their ids."""

    message: Mapping[str, Any]
    answers: dict[str, str] = field(default_factory=dict)


def atif_trajectory(
    result: AgentResult,
    *,
    trajectory_id: str,
    agent: str,
    model: str,
    sampled_tokens: int,
    outcome: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the trajectory ready for json.dumps. `outcome` says what became of it, as `status` and `reward`."""
    steps = [{"step_id": number, **step} for number, step in enumerate(_make_steps(result), 1)]
    described: dict[str, Any] = {"name": agent, "version": __version__, "model_name": model}
    if result.tools:
        described["tool_definitions"] = [dict(tool) for tool in result.tools]
    return {
        "schema_version": SCHEMA,
        "session_id": trajectory_id,
        "agent": described,
        "steps": steps,
        "final_metrics": {"total_completion_tokens": sampled_tokens, "total_steps": len(steps)},
        "extra": dict(outcome),
    }


def _make_steps(result: AgentResult) -> Iterator[dict[str, Any]]:
    for message in result.messages:
        if message.get("role") not in _OPENING:
            break
        yield {"source": message["role"], "message": str(message.get("content") or "")}
    replies = deque(_list_replies(result.messages))
    for turn in result.turns:
        reply = _Reply({})
        # Refused replies, and those to other prompts, are turns whose messages are not in the conversation.
        is_of_agent = not turn.sub_agent and not turn.summary
        if is_of_agent and replies and (replies[0].message.get("content") or "") == turn.message:
            reply = replies.popleft()
        yield {"source": "agent", "message": turn.message, **_describe_action(turn, reply)}


def _list_replies(messages: Sequence[Mapping[str, Any]]) -> list[_Reply]:
    """Returns the assistant's messages in their order, each with the answers that follow it."""
    replies: list[_Reply] = []
    for message in messages:
        if message.get("role") == "assistant":
            replies.append(_Reply(message))
        elif message.get("role") == "tool" and replies:
            replies[-1].answers[str(message.get("tool_call_id"))] = str(message.get("content") or "")
    return replies


def _describe_action(turn: Turn, reply: _Reply) -> dict[str, Any]:
    """Returns the calls and their results. For a reply without a call it is the words that the reply was answered."""
    step: dict[str, Any] = {}
    calls = _list_calls(reply.message)
    if not calls and turn.command is not None:
        arguments = {"command": turn.command}
        calls = [{"tool_call_id": f"call_{turn.index}", "function_name": "bash", "arguments": arguments}]
    if calls:
        step["tool_calls"] = calls
    results = _list_results(turn, calls, reply.answers)
    if results:
        step["observation"] = {"results": results}
    extra: dict[str, Any] = {}
    if turn.exit_code is not None:
        extra["exit_code"] = turn.exit_code
    if turn.sub_agent:
        extra[SUB_AGENT] = turn.sub_agent
    if turn.summary:
        extra[SUMMARY] = turn.summary
    if extra:
        step["extra"] = extra
    return step


def _list_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls of an assistant's message in OpenAI's shape, as ATIF has them."""
    calls = []
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = as_mapping(as_mapping(call).get("function", call))
        arguments = _read_arguments(function.get("arguments"))
        name = str(as_mapping(call).get("id", f"call_{number}"))
        calls.append({"tool_call_id": name, "function_name": str(function.get("name")), "arguments": arguments})
    return calls


def _read_arguments(written: Any) -> dict[str, Any]:
    """Returns a call's arguments. What is no JSON object stands below `arguments`, since ATIF has objects alone."""
    read = written
    if isinstance(written, str):
        try:
            read = json.loads(written)
        except (ValueError, RecursionError):
            read = None
    if isinstance(read, Mapping):
        return dict(read)
    return {"arguments": written}


def _list_results(turn: Turn, calls: Sequence[Mapping[str, Any]], answers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the answers by call, where the messages have all of them, and else the turn's observation."""
    names = {call["tool_call_id"] for call in calls}
    is_whole = len(answers) == len(calls) or "\n".join(answers.values()) == turn.observation
    if answers and names.issuperset(answers) and is_whole:
        return [{"source_call_id": name, "content": content} for name, content in answers.items()]
    if turn.observation is None:
        return []
    if len(calls) == 1:
        return [{"source_call_id": calls[0]["tool_call_id"], "content": turn.observation}]
    return [{"content": turn.observation}]
