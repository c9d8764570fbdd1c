"""This agent has no model: it makes the known fix in steps that others can imitate.

Invariants:
- The conversation is that of `agent=bash`: its system message, its commands and what they said.
- Each step uses only what the task or an earlier step has shown: a search finds the function, a listing the line.
- A fix is made with sed. One that makes, removes or renames a file is not made, and the attempt hands in nothing.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Turn
from swe_rl.agent.prompts import system_prompt
from swe_rl.agent.scripted import Patches, ScriptedAgent, look_up, require_patches
from swe_rl.config.schema import AgentConfig
from swe_rl.env.mining.hunks import hunks_of
from swe_rl.env.patch_hunks import changed_places
from swe_rl.files.lines import lines_of

_SUBMIT = "submit"
# A listing shows so many lines: more than most functions have, and little of a small context.
_LISTED_LINES = 40
# A function is listed from its beginning on, unless the change is further down than so many listings.
_MOST_LISTINGS = 3
_DEFINITION = re.compile(r"^(\s*)(?:async +def|def|class) +(\w+)")
_DELIMITERS = "/|#~@%"


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Holds neighbouring lines of a file that the fix takes out, and those that it puts in their place."""

    path: str
    first_line: int  # It is counted from 1 in the file before the fix. New lines alone stand before it.
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def last_line(self) -> int:
        return self.first_line + max(len(self.removed), 1) - 1

    def command(self) -> str:
        """Returns a command that makes this edit and no other."""
        return f"sed -i {_quoted(self._script())} {shlex.quote(self.path)}"

    def _script(self) -> str:
        if len(self.removed) == len(self.added) == 1:
            substitution = _substitution(self.removed[0], self.added[0])
            if substitution:
                return f"{self.first_line}{substitution}"
        if not self.removed and self.first_line == 1:
            return f"1i\\\n{_as_text(self.added)}"
        if not self.removed:
            # Behind the line before: at the end of a file there is no line that they could stand in front of.
            return f"{self.first_line - 1}a\\\n{_as_text(self.added)}"
        lines = f"{self.first_line},{self.last_line}"
        if len(self.removed) == 1:
            lines = str(self.first_line)
        if not self.added:
            return f"{lines}d"
        return f"{lines}c\\\n{_as_text(self.added)}"


def line_edits(patch: str) -> list[LineEdit]:
    """Returns the edits of a patch, the last of each file first: so each line keeps its number until its edit.

    The list is empty where the patch does more than to change lines.
    """
    edits: list[LineEdit] = []
    for hunk in hunks_of(patch):
        if not hunk.header or "\n\\" in hunk.text:
            return []
        for number, removed, added in changed_places(lines_of(hunk.text)):
            edits.append(LineEdit(hunk.path, number, tuple(removed), tuple(added)))
    return edits[::-1]


class DemonstratingAgent(ScriptedAgent):
    """Shows how to find and make the known fix. `patches` maps an instance's id to a unified diff."""

    name = "demonstrate"

    def __init__(self, config: AgentConfig, patches: Patches, *, command_timeout_s: float) -> None:
        super().__init__((), command_timeout_s=command_timeout_s)
        self._patch_of = look_up(patches)
        self._system_prompt = system_prompt(config.system_prompt)
        self._max_observation_chars = config.max_observation_chars

    async def run(self, work: Assignment) -> AgentResult:
        commands = await self._steps(work)
        result = await self._carry_out(work, commands)
        result.messages.insert(0, {"role": "system", "content": self._system_prompt})
        if commands and result.exit is Exit.SUBMITTED:
            said = f"```bash\n{_SUBMIT}\n```"
            result.turns.append(Turn(len(result.turns), said, _SUBMIT, ""))
            result.messages.append({"role": "assistant", "content": said})
        return result

    async def _steps(self, work: Assignment) -> list[str]:
        """Returns the commands before the submission."""
        commands: list[str] = []
        for edit in line_edits(self._patch_of(work.task.instance_id) or ""):
            source = (await work.sandbox.read_file(edit.path)).decode("utf-8", "replace")
            commands += [*_ways_to(edit, lines_of(source)), edit.command()]
        return commands


def _ways_to(edit: LineEdit, source: Sequence[str]) -> Iterator[str]:
    """Yields the commands that find the edit's lines: a search for the function around them, then listings."""
    path = shlex.quote(edit.path)
    begin = max(1, edit.first_line - _LISTED_LINES // 2)
    definition = _definition_around(edit.first_line, source)
    if definition is not None:
        keyword_and_name, line = definition
        pattern = f"{keyword_and_name}\\b"
        yield f"grep -rn {shlex.quote(pattern)} --include='*{_suffix(edit.path)}' ."
        if edit.last_line - line < _MOST_LISTINGS * _LISTED_LINES:
            begin = line
    while True:
        end = begin + _LISTED_LINES - 1
        yield f"nl -ba {path} | sed -n '{begin},{end}p'"
        if end >= edit.last_line:
            return
        begin = end + 1


def _definition_around(number: int, source: Sequence[str]) -> tuple[str, int] | None:
    """Returns the definition of the function or class that holds a line, and its line's number."""
    indent = len(source[number - 1]) - len(source[number - 1].lstrip()) if number <= len(source) else 0
    for line in range(number, 0, -1):
        match = _DEFINITION.match(source[line - 1])
        if match and (len(match[1]) < indent or line == number):
            return match[0].strip(), line
    return None


def _suffix(path: str) -> str:
    _, dot, suffix = path.rpartition(".")
    return dot + suffix


def _substitution(before: str, after: str) -> str:
    """Returns sed's substitution that turns one line into the other, or an empty text where whole lines are clearer."""
    start = len(commonprefix([before, after]))
    end = len(commonprefix([before[start:][::-1], after[start:][::-1]]))
    # Whole words are exchanged, as a person does it: s/!=/==/, and not s/!/=/.
    while start and not before[start - 1].isspace():
        start -= 1
    while end and not before[-end].isspace():
        end -= 1
    old = before[start : len(before) - end]
    new = after[start : len(after) - end]
    delimiter = next((sign for sign in _DELIMITERS if sign not in before + after), "")
    is_unique = bool(old) and before.find(old) == start
    if not delimiter or not is_unique:
        return ""
    pattern = re.sub(r"([\\.\[\]*^$])", r"\\\1", old)
    replacement = re.sub(r"([\\&])", r"\\\1", new)
    return f"s{delimiter}{pattern}{delimiter}{replacement}{delimiter}"


def _as_text(lines: Sequence[str]) -> str:
    """Returns lines as the text of sed's commands `c` and `i`."""
    return "\\\n".join(line.replace("\\", "\\\\") for line in lines)


def _quoted(script: str) -> str:
    """Returns the script as a word of bash, in quotes even where it needs none."""
    return "'" + script.replace("'", "'\\''") + "'"


def demonstrating_agent(config: AgentConfig, patches: Patches | None, command_timeout_s: float) -> DemonstratingAgent:
    """Makes agent=demonstrate. Raises UserError."""
    return DemonstratingAgent(config, require_patches("demonstrate", patches), command_timeout_s=command_timeout_s)
