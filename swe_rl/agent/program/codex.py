"""This agent is the Codex command line (npm: @openai/codex), headless in the sandbox, with the gateway's Responses as
its model.

Invariants:
- Its settings are ours and lie outside of the repository, with all that it writes: no question to the user, no sandbox
  of its own within ours, no update, no statistics, no compaction. Whatever leaves the sandbox is off, and so is what
  begins a second conversation, and what a model of ours has no words for (images, goals, plugins).
- The model's commands do not find the address of the model in their environment.
- What it reports with --json becomes turns.
"""

import json
from types import MappingProxyType
from typing import Any

from swe_rl.agent.agent import Turn
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.program.agent import ProgramAgent
from swe_rl.agent.program.session import json_lines

_OFF = (
    "apps", "browser_use", "computer_use", "goals", "hooks", "image_generation", "in_app_browser",
    "plugins", "remote_plugin", "shell_snapshot", "skill_search", "tool_suggest", "view_image",
    "workspace_dependencies",
)  # fmt: skip
# The router may hold a turn for long, and the attempt has its own end.
_DAY_MS = 24 * 3600 * 1000
# The gateway's context ends long before this, so nothing is ever compacted.
_NEVER_TOKENS = 2**40
SETTINGS = f"""\
model_provider = "gateway"
approval_policy = "never"
sandbox_mode = "danger-full-access"  # the sandbox is around all of it
allow_login_shell = false
web_search = "disabled"
check_for_update_on_startup = false
model_context_window = {_NEVER_TOKENS}
model_auto_compact_token_limit = {_NEVER_TOKENS}
include_permissions_instructions = false
include_collaboration_mode_instructions = false

[model_providers.gateway]
name = "gateway"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
stream_idle_timeout_ms = {_DAY_MS}
request_max_retries = 10
stream_max_retries = 0
supports_websockets = false

[shell_environment_policy]
exclude = ["OPENAI_*", "ANTHROPIC_*", "CODEX_*", "SWE_RL_*"]

[features]
{"".join(f"{name} = false{chr(10)}" for name in _OFF)}
[agents]
enabled = false

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"

[otel]
exporter = "none"
trace_exporter = "none"
metrics_exporter = "none"
"""
_SETUP = """\
export CODEX_HOME="$SWE_RL_FOLDER/codex"
codex() { command codex -c model="$OPENAI_MODEL" -c model_providers.gateway.base_url="$OPENAI_BASE_URL" "$@"; }
"""


def read_items(output: str, max_observation_chars: int) -> list[Turn]:
    """Returns one turn for each command or change of files, with what the model said before it, and one for its last
    words."""
    turns: list[Turn] = []
    said = ""
    for event in json_lines(output):
        item: Any = event.get("item")
        if event.get("type") != "item.completed" or not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind == "agent_message":
            said += str(item.get("text") or "")
        elif kind in ("command_execution", "file_change"):
            command = item.get("command") or json.dumps(item.get("changes"), ensure_ascii=False)
            seen = shorten_text(str(item.get("aggregated_output") or ""), max_observation_chars)
            status = item.get("exit_code")
            turns.append(
                Turn(len(turns), said, str(command), seen, exit_code=status if isinstance(status, int) else None)
            )
            said = ""
    if said:
        return [*turns, Turn(len(turns), said, None, None)]
    return turns


class CodexAgent(ProgramAgent):
    files = MappingProxyType({"codex/config.toml": SETTINGS.encode()})
    env = MappingProxyType({"NO_COLOR": "1", "CODEX_DISABLE_UPDATE_CHECK": "1"})
    setup = _SETUP
    read_turns = staticmethod(read_items)
