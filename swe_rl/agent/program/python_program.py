"""Agents that are libraries of a Python of their own: a script of ours makes one attempt with them, in the sandbox.

Invariants:
- What runs is a file of inside/, in the sandbox's Python that has the library; nothing of the library is imported here.
- `agent.program_path` is where this Python is looked for. It is not in the PATH of the model's commands, which find the
  repository's own Python.
- How it ended is the script's exit status alone: what it prints holds what the model has read.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from swe_rl.agent.program.agent import ProgramAgent
from swe_rl.config.schema import AgentConfig

INSIDE = Path(__file__).parents[1] / "inside"
# With -I, modules come neither from the repository nor from the user's folder.
_SETUP = """\
{program}() {{
  local python
  python=$(PATH={path}"$PATH"; command -v python3) || {{ printf '{program}: no python3 in %s\\n' {shown}; return 127; }}
  "$python" -I "$SWE_RL_FOLDER/{script}" "$@"
}}
"""


class PythonProgramAgent(ProgramAgent):
    """Defines `program` as a bash function that runs `script`, one of `files`."""

    program: ClassVar[str]
    script: ClassVar[str]

    def __init__(self, config: AgentConfig, *, max_turns: int, api_key: str | None = None) -> None:
        path = config.program_path
        before = f"{shlex.quote(path)}:" if path else ""
        shown = shlex.quote(path or "PATH")
        self.setup = self.setup + _SETUP.format(program=self.program, script=self.script, path=before, shown=shown)
        super().__init__(replace(config, program_path=None), max_turns=max_turns, api_key=api_key)
