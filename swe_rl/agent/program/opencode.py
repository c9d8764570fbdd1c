"""This agent is opencode (npm: opencode-ai), headless in the sandbox, with the gateway's Chat Completions as its model.

Invariants:
- Its settings are ours and lie outside of the repository, with all that it writes: no question to the user, no list of
  models, update, plugin, language server or formatter from the network, no sharing. What would rewrite the conversation
  or begin another is off: compaction, pruning, titles, sub-agents.
- The model's commands do not find the address of the model in their environment.
- What it reports with --format json becomes turns.
"""

import json
from types import MappingProxyType
from typing import Any

from swe_rl.agent.agent import Turn
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.program.agent import HIDDEN, HIDE, ProgramAgent
from swe_rl.agent.program.session import json_lines

# The gateway's context ends long before this, so nothing is ever compacted.
_MANY_TOKENS = 2**30
SETTINGS: dict[str, Any] = {
    "model": "gateway/policy",
    "small_model": "gateway/policy",
    "enabled_providers": ["gateway"],
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",  # This package is built in.
            "name": "gateway",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}", "timeout": False},
            "models": {
                "policy": {
                    "id": "{env:OPENAI_MODEL}",
                    "name": "policy",
                    "tool_call": True,
                    "reasoning": True,
                    "limit": {"context": _MANY_TOKENS, "output": _MANY_TOKENS},
                }
            },
        }
    },
    "permission": {"*": "allow", **dict.fromkeys(("task", "webfetch", "websearch", "question", "skill"), "deny")},
    "compaction": {"auto": False, "prune": False},
    "autoupdate": False,
    "share": "disabled",
    "snapshot": False,
    "lsp": False,
    "formatter": False,
    "plugin": [],
}
_OFF = (
    "AUTOCOMPACT", "AUTOUPDATE", "CLAUDE_CODE", "DEFAULT_PLUGINS", "EMBEDDED_WEB_UI", "EXTERNAL_SKILLS", "LSP_DOWNLOAD",
    "MODELS_FETCH", "PROJECT_CONFIG", "PRUNE", "SHARE", "TERMINAL_TITLE",
)  # fmt: skip
_ENV = {
    "NO_COLOR": "1",
    "OPENCODE_PURE": "1",  # It loads no plugins.
    "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER": "1",
    "BUN_JSC_useWasmFastMemory": "0",  # Each WebAssembly memory would reserve gigabytes of address space.
}
_SETUP = """\
export OPENCODE_CONFIG="$SWE_RL_FOLDER/opencode/settings.json" OPENCODE_TEST_HOME="$SWE_RL_FOLDER/opencode"
export XDG_CONFIG_HOME="$SWE_RL_FOLDER/opencode/config" XDG_DATA_HOME="$SWE_RL_FOLDER/opencode/data"
export XDG_STATE_HOME="$SWE_RL_FOLDER/opencode/state" XDG_CACHE_HOME="$SWE_RL_FOLDER/opencode/cache"
"""


def read_events(output: str, max_observation_chars: int) -> list[Turn]:
    """Returns one turn for each step, which is a call of the model."""
    turns: list[Turn] = []
    for event in json_lines(output):
        part: Any = event.get("part")
        kind = event.get("type")
        if not isinstance(part, dict):
            continue
        if kind == "step_start":
            turns.append(Turn(len(turns), "", None, None))
        elif kind == "text" and turns:
            turns[-1].message += str(part.get("text") or "")
        elif kind == "tool_use" and turns:
            _add_tool_use(turns[-1], part, max_observation_chars)
    return turns


def _add_tool_use(turn: Turn, part: dict[str, Any], max_observation_chars: int) -> None:
    state: Any = part.get("state")
    state = state if isinstance(state, dict) else {}
    command = f"{part.get('tool')} {json.dumps(state.get('input'), ensure_ascii=False)}"
    seen = str(state.get("output") or state.get("error") or "")
    turn.command = "\n".join(filter(None, [turn.command, command]))
    turn.observation = shorten_text("\n".join(filter(None, [turn.observation, seen])), max_observation_chars)


class OpencodeAgent(ProgramAgent):
    files = MappingProxyType({"opencode/settings.json": json.dumps(SETTINGS).encode(), "hidden.sh": HIDDEN})
    env = MappingProxyType({**_ENV, **{f"OPENCODE_DISABLE_{name}": "1" for name in _OFF}})
    setup = _SETUP + HIDE
    read_turns = staticmethod(read_events)
