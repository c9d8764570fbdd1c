"""An attempt in mini-swe-agent's trajectory format, for its inspector and for people who compare with its runs.

Invariants:
- The format is `mini-swe-agent-1.1`: info, messages with an `exit` message last, trajectory_format.
- Made from what every agent leaves behind: any agent's attempt can be written.
"""

from typing import Any

from swe_rl.agent.mini_swe.agent import EXIT_STATUS
from swe_rl.agent.protocol import AgentResult

TRAJECTORY_FORMAT = "mini-swe-agent-1.1"


def mini_swe_trajectory(result: AgentResult, *, instance_id: str, agent: str, model: str, patch: str) -> dict[str, Any]:
    """Ready for json.dumps; the library writes it as `INSTANCE/INSTANCE.traj.json` beside a preds.json."""
    status = EXIT_STATUS[result.exit]
    return {
        "info": {
            "model_stats": {"instance_cost": 0.0, "api_calls": len(result.turns)},
            "config": {"agent_type": agent, "model": {"model_name": model}},
            "exit_status": status,
            "submission": patch,
        },
        "messages": [*_messages(result), _exit_message(status, patch)],
        "trajectory_format": TRAJECTORY_FORMAT,
        "instance_id": instance_id,
    }


def _messages(result: AgentResult) -> list[dict[str, Any]]:
    """With each reply's commands in `extra.actions`, which the library's inspector shows."""
    turns = iter(result.turns)
    messages = []
    for message in result.messages:
        turn = next(turns, None) if message["role"] == "assistant" else None
        actions = [{"command": turn.command}] if turn is not None and turn.command is not None else []
        messages.append({**message, "extra": {"actions": actions}} if turn is not None else dict(message))
    return messages


def _exit_message(status: str, patch: str) -> dict[str, Any]:
    return {"role": "exit", "content": patch or status, "extra": {"exit_status": status, "submission": patch}}
