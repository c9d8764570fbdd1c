"""This agent is the qwen-code command line (npm: @qwen-code/qwen-code), headless in the sandbox, with the gateway as
its model.

Invariants:
- Its settings are ours and lie outside of the repository: no automatic memory, no compression of the conversation, no
  clearing of old tool results, no update, no statistics. What would rewrite or add to the conversation is off, so that
  a trajectory is one chain of tokens.
- The model's commands do not find the address of the model in their environment.
- What it reports with --output-format stream-json becomes turns; without it the attempt is one turn.
"""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swe_rl.agent.program.agent import HIDDEN, HIDE, ProgramAgent
from swe_rl.agent.program.session import read_session

# These are settings of versions 0.15 and 0.24; each ignores what it does not know.
SETTINGS: dict[str, Any] = {
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "checkpointing": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "openai"}},
    "model": {
        "chatCompression": {"contextPercentageThreshold": 0},  # This switches it off in 0.15.
        "skipNextSpeakerCheck": True,
        "skipLoopDetection": True,
    },
    "context": {
        "autoCompactThreshold": 0.99,  # In 0.24 it cannot be later; the gateway's context ends before.
        "clearContextOnIdle": {"toolResultsThresholdMinutes": -1, "thinkingThresholdMinutes": -1},
    },
    "tools": {"shell": {"enableInteractiveShell": False}},  # Without a terminal the output is plain.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
    "experimental": {"emitToolUseSummaries": False},
    "ui": {"enableFollowupSuggestions": False},
}
_ENV = {
    "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    "QWEN_CODE_EMIT_TOOL_USE_SUMMARIES": "0",
    "QWEN_CODE_NO_RELAUNCH": "1",  # The program would start itself again.
    "NO_COLOR": "1",
}
_START = Path(__file__).parents[1] / "inside" / "node_start.cjs"
# The trap handler would reserve ten gigabytes of address space beside each WebAssembly memory.
_SETUP = """\
export QWEN_HOME="$SWE_RL_FOLDER/qwen"
export NODE_OPTIONS="--disable-wasm-trap-handler --require=$SWE_RL_FOLDER/qwen/node_start.cjs"
"""


class QwenCodeAgent(ProgramAgent):
    files = MappingProxyType(
        {
            "qwen/settings.json": json.dumps(SETTINGS).encode(),
            "qwen/node_start.cjs": _START.read_bytes(),
            "hidden.sh": HIDDEN,
        }
    )
    env = MappingProxyType(_ENV)
    setup = _SETUP + HIDE
    read_turns = staticmethod(read_session)
