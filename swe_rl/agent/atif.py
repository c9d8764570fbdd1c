"""This module writes an attempt in the Agent Trajectory Interchange Format (ATIF), which Harbor and others read.

Invariants:
- Every turn is one agent step: what the model said, the command as a tool call, what it was answered as its result.
- The turns of sub-agents stand where they were taken, and `extra` has the number of their sub-agent. So do those that
  wrote a summary, and `extra` says what became of it.
- Steps are counted from 1. What we do not know (prices, tokens of a single step) is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from swe_rl.agent.agent import AgentResult, Turn
from swe_rl.version import __version__

SCHEMA = "ATIF-v1.7"
# These are our keys of a step's `extra`.
SUB_AGENT = "sub_agent"
SUMMARY = "compaction_summary"
_OPENING = ("system", "user")


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
    return {
        "schema_version": SCHEMA,
        "session_id": trajectory_id,
        "agent": {"name": agent, "version": __version__, "model_name": model},
        "steps": steps,
        "final_metrics": {"total_completion_tokens": sampled_tokens, "total_steps": len(steps)},
        "extra": dict(outcome),
    }


def _make_steps(result: AgentResult) -> Iterator[dict[str, Any]]:
    for message in result.messages:
        if message.get("role") not in _OPENING:
            break
        yield {"source": message["role"], "message": str(message.get("content") or "")}
    for turn in result.turns:
        yield {"source": "agent", "message": turn.message, **_describe_action(turn)}


def _describe_action(turn: Turn) -> dict[str, Any]:
    """Returns the call and its result. For a reply without a command it is the words that the reply was answered."""
    name = f"call_{turn.index}"
    step: dict[str, Any] = {}
    answered: dict[str, Any] = {}
    if turn.command is not None:
        call = {"tool_call_id": name, "function_name": "bash", "arguments": {"command": turn.command}}
        step = {"tool_calls": [call]}
        answered = {"source_call_id": name}
    if turn.observation is not None:
        step["observation"] = {"results": [{**answered, "content": turn.observation}]}
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
