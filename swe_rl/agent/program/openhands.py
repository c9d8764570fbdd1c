"""This agent is OpenHands' (its software-agent SDK), in the sandbox.

Invariants:
- What runs is inside/openhands_run.py, in the sandbox's Python that has the SDK; nothing of the SDK is imported here.
- `agent.program_path` is where this Python is looked for. It is not in the PATH of the model's commands, which find the
  repository's own Python.
- How it ended is the runner's exit status alone: what it prints holds what the model has read.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from swe_rl.agent.program.agent import ProgramAgent
from swe_rl.agent.program.session import read_session
from swe_rl.config.schema import AgentConfig

RUNNER = Path(__file__).parents[1] / "inside" / "openhands_run.py"
# With -I, modules come neither from the repository nor from the user's folder.
_SETUP = """\
openhands() {{
  local python
  python=$(PATH={path}"$PATH"; command -v python3) || {{ printf 'openhands: no python3 in %s\\n' {shown}; return 127; }}
  "$python" -I "$SWE_RL_FOLDER/openhands_run.py" "$@"
}}
"""


class OpenHandsAgent(ProgramAgent):
    files = MappingProxyType({RUNNER.name: RUNNER.read_bytes()})
    read_turns = staticmethod(read_session)

    def __init__(self, config: AgentConfig, *, max_turns: int, api_key: str | None = None) -> None:
        path = config.program_path
        self.setup = _SETUP.format(path=f"{shlex.quote(path)}:" if path else "", shown=shlex.quote(path or "PATH"))
        super().__init__(replace(config, program_path=None), max_turns=max_turns, api_key=api_key)
