"""The words that the debugging agent gives its model, by `agent.system_prompt` and `agent.tools`.

Invariants:
- A tool that the agent does not have is not spoken of: the ablation differs in nothing else.
- `pdb_short` without the debugger is, to the byte, the prompt that the tiny model was warm-started on.
"""

from dataclasses import dataclass

from swe_rl.agent.pdb_tools import EDITS_BEFORE_PDB, TOOLS
from swe_rl.agent.prompts import SYSTEM_PROMPTS
from swe_rl.errors import UserError

CALL_REMINDER = "Call one of the tools. `submit` hands in what you have changed."

_STANDARD = """\
You are a software engineer who solves one issue in a code repository. You work through tools: say in a sentence or \
two what you are about to do and why, then call one of them, and read what it answers.

Rules.
- Paths are relative to the root of the repository, where commands start. Each command runs in a new shell: files \
carry over, `cd` and variables do not.
- There is no terminal and no network. A command that runs too long is stopped; long output is cut in the middle.
- Fix the cause in the source code. Do not change existing tests and do not add files that the fix does not need.

Way of working.
1. Find the code that the issue speaks of and read it.
2. Reproduce the fault with a test or a small script.
{debugging}3. Make the smallest change that repairs it.
4. Run your reproduction and the tests nearby again, and think of edge cases.
5. When you are sure, and only then, call `submit`. Nothing can be done after it."""
_DEBUGGING = """\
   Look at it with `pdb` where reading is not enough: set breakpoints where the state matters, continue to them, print \
what you suspect. The session stays from call to call, one command each; its breakpoints stay when an edit starts the \
program again. Give `entrypoint` to debug a certain test.
"""
_LATER = "   The debugger can be used once you have made {edits} edits.\n"
_SHORT_DEBUGGING = " A ```pdb block holds one debugger command."


@dataclass(frozen=True, slots=True)
class DebuggingPrompt:
    text: str
    by_blocks: bool  # tools are called by fenced blocks with their names, not by function calls


def debugging_prompt(name: str, tools: str) -> DebuggingPrompt:
    """Raises UserError for an unknown name."""
    has_debugger, edits = TOOLS[tools], EDITS_BEFORE_PDB.get(tools, 0)
    if name == "pdb_short":
        return DebuggingPrompt(SYSTEM_PROMPTS["short"] + (_SHORT_DEBUGGING if has_debugger else ""), by_blocks=True)
    if name == "pdb_standard":
        debugging = (_DEBUGGING if has_debugger else "") + (_LATER.format(edits=edits) if edits else "")
        return DebuggingPrompt(_STANDARD.format(debugging=debugging), by_blocks=False)
    raise UserError(f"agent.system_prompt={name!r} is not known to agent=pdb; choose pdb_standard or pdb_short")
