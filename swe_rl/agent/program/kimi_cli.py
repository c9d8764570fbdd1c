"""This agent is the Kimi command line (of the package kimi-cli), headless in the sandbox, with the gateway's Chat
Completions as its model.

Invariants:
- The model's commands do not find the address of the model in their environment.
- Lines that it prints with --output-format stream-json are messages of Chat Completions, and become turns.
"""

import json
from types import MappingProxyType
from typing import Any

from swe_rl.agent.agent import Turn
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.program.agent import HIDDEN, HIDE
from swe_rl.agent.program.python_program import INSIDE, PythonProgramAgent
from swe_rl.agent.program.session import json_lines

RUNNER = INSIDE / "kimi_run.py"


def read_chat_messages(output: str, max_observation_chars: int) -> list[Turn]:
    """Returns one turn for each reply, with the results of its tools as observation. Anything else that is printed is
    passed over, and nothing raises."""
    turns: list[Turn] = []
    for message in json_lines(output):
        text = _text_of(message.get("content"))
        if message.get("role") == "assistant":
            turns.append(Turn(len(turns), text, _describe_calls(message.get("tool_calls")), None))
        elif message.get("role") == "tool" and turns:
            joined = "\n".join([*filter(None, [turns[-1].observation]), text])
            turns[-1].observation = shorten_text(joined, max_observation_chars)
    return turns


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(str(part.get("text", "")) for part in parts)
    return content if isinstance(content, str) else ""


def _describe_calls(calls: Any) -> str | None:
    described = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            described.append(f"{function.get('name')} {written}")
    return "\n".join(described) or None


class KimiCliAgent(PythonProgramAgent):
    program = "kimi"
    script = RUNNER.name
    files = MappingProxyType({RUNNER.name: RUNNER.read_bytes(), "hidden.sh": HIDDEN})
    env = MappingProxyType({"NO_COLOR": "1", "KIMI_CLI_NO_AUTO_UPDATE": "1"})
    setup = HIDE
    read_turns = staticmethod(read_chat_messages)
