"""This agent is the Claude Code command line (npm: @anthropic-ai/claude-code), headless in the sandbox, with the
gateway's Messages as its model.

Invariants:
- Its settings are ours and lie outside of the repository, with all that it writes: no question to the user, no update,
  no statistics, no memory. What would rewrite the conversation or begin another is off: compaction, sub-agents, titles,
  skills. Neither the repository's CLAUDE.md nor its .claude are read.
- The model's commands do not find the address of the model in their environment.
- What it reports with --output-format stream-json becomes turns; without it the attempt is one turn.
"""

import json
from types import MappingProxyType
from typing import Any

from swe_rl.agent.program.agent import HIDDEN, HIDE, ProgramAgent
from swe_rl.agent.program.session import read_session

# The router may hold a turn for long, and the attempt has its own end.
_DAY_MS = str(24 * 3600 * 1000)
SETTINGS: dict[str, Any] = {
    "autoCompactEnabled": False,
    "includeCoAuthoredBy": False,
    "alwaysThinkingEnabled": False,
    "permissions": {"deny": ["Task", "Agent", "WebFetch", "WebSearch", "AskUserQuestion", "Skill"]},
}
_OFF = (
    "ADAPTIVE_THINKING", "ADVISOR_TOOL", "AGENT_VIEW", "ATTACHMENTS", "AUTO_MEMORY", "BACKGROUND_TASKS",
    "BUNDLED_SKILLS", "CLAUDE_MDS", "CRON", "EXPERIMENTAL_BETAS", "FAST_MODE", "FEEDBACK_SURVEY", "FILE_CHECKPOINTING",
    "GIT_INSTRUCTIONS", "NONESSENTIAL_TRAFFIC", "NONSTREAMING_FALLBACK", "OFFICIAL_MARKETPLACE_AUTOINSTALL",
    "REFUSAL_FALLBACK", "TERMINAL_TITLE", "THINKING", "WORKFLOWS",
)  # fmt: skip
_ENV = {
    "NO_COLOR": "1",
    "IS_SANDBOX": "1",  # Otherwise it refuses to act without questions as root.
    "DISABLE_COMPACT": "1",
    "DISABLE_AUTO_COMPACT": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # Its value changes with each request, and with it the system prompt.
    "CLAUDE_CODE_MAX_RETRIES": "10",
    "API_TIMEOUT_MS": _DAY_MS,
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS": _DAY_MS,
    "BASH_DEFAULT_TIMEOUT_MS": _DAY_MS,
}
# Its tools and its first words depend on the model's name, which is ours.
_SETUP = """\
export CLAUDE_CONFIG_DIR="$SWE_RL_FOLDER/claude" ANTHROPIC_SMALL_FAST_MODEL="$ANTHROPIC_MODEL"
"""


class ClaudeCodeAgent(ProgramAgent):
    files = MappingProxyType({"claude/settings.json": json.dumps(SETTINGS).encode(), "hidden.sh": HIDDEN})
    env = MappingProxyType({**_ENV, **{f"CLAUDE_CODE_DISABLE_{name}": "1" for name in _OFF}})
    setup = _SETUP + HIDE
    read_turns = staticmethod(read_session)
