"""This module does what the debugging agent's tools ask for in the sandbox.

Invariants:
- Whatever the model asks for, the answer is an observation; only a broken sandbox raises.
- Files are written whole or not at all; an edit that does not fit changes nothing.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from swe_rl.agent.agent import Turn
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.observation import format_observation, shorten_text
from swe_rl.agent.pdb.tools import EDITS_BEFORE_PDB
from swe_rl.config.schema import AgentConfig
from swe_rl.env.patch_hunks import HunkHeader, Span
from swe_rl.files.lines import lines_of
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import ExecResult

_INSIDE = Path(__file__).parents[1] / "inside"
_SCRIPTS = ("debugger.py", "debuggee.py")
# The scripts lie in the repository for as long as it takes to move them out.
_CARRIED = ".swe_rl_debugger"
_HOME = "${TMPDIR:-/tmp}/.swe_rl_debugger"
# A search shows at most so many lines; a broad pattern would fill the prompt.
_MOST_FOUND = 200
# An edit is shown with so many lines around it.
_DIFF_LINES = 3
# A larger file is not edited: it would have to be read and written whole.
_MOST_BYTES = 2_000_000
_MAY_EDIT = """\
path=$(realpath -m -- {path}) || exit 1
case "$path" in "$(pwd -P)"/.git/*) echo "the repository's own records are not edited"; exit 1;;
"$(pwd -P)"/*) ;; *) echo "not in the repository: $path"; exit 1;; esac
if [ -e "$path" ] && [ ! -f "$path" ]; then echo "not a file: $path"; exit 1; fi
if [ -f "$path" ] && [ "$(stat -c %s -- "$path")" -gt {most} ]; then echo "too large: $path"; exit 1; fi
"""


@dataclass(slots=True)
class Workbench:
    """Holds one attempt's tools. Every method returns an observation, or None when the time is over."""

    talk: Conversation
    config: AgentConfig
    edits: int = 0
    is_debugger_there: bool = False

    async def bash(self, turn: Turn, command: str) -> str | None:
        return self._observation(await self.talk.execute(command, turn))

    async def view(self, turn: Turn, path: str, start: int = 1, end: int = 0) -> str | None:
        quoted = shlex.quote(self._inside(path))
        last = end if end >= start else "$"
        lines = f"cat -n -- {quoted} | sed -n '{max(1, start)},{last}p'"
        shown = f"set -o pipefail; if [ -d {quoted} ]; then ls -p -- {quoted}; else {lines}; fi"
        return self._observation(await self.talk.execute(shown, turn))

    async def grep(self, turn: Turn, pattern: str, path: str = ".") -> str | None:
        wanted = f"-e {shlex.quote(pattern)} -- {shlex.quote(self._inside(path))}"
        command = f"grep -rnIE --exclude-dir=.git {wanted} | head -n {_MOST_FOUND}"
        return self._observation(await self.talk.execute(f"set -o pipefail; {command}", turn))

    async def edit(
        self, turn: Turn, path: str, new: str, old: str | None = None, start: int | None = None, end: int | None = None
    ) -> str | None:
        path = self._inside(path)
        allowed = await self.talk.execute(_MAY_EDIT.format(path=shlex.quote(path), most=_MOST_BYTES), turn)
        if allowed is None or allowed.exit_code:
            return self._observation(allowed)
        try:
            before = (await self.talk.work.sandbox.read_file(path)).decode()
        except MissingFileError:
            before = None
        except UnicodeDecodeError:
            return f"{path} is not a text file"
        after = _edit_text(before, new, old, start, end)
        if isinstance(after, Refusal):
            return f"{path}: {after.why}"
        await self.talk.work.sandbox.write_file(path, after.encode("utf-8", "replace"))
        self.edits += 1
        return self._short(_show_diff(path, before or "", after))

    async def pdb(self, turn: Turn, command: str, entrypoint: str = "") -> str | None:
        needed = EDITS_BEFORE_PDB[self.config.tools]
        if self.edits < needed:
            return f"pdb can be used after {needed} edits; there were {self.edits}"
        if not await self._install(turn):
            return None
        lines = [line for line in lines_of(command, ends=False) if line.strip()] or [""]
        order = {
            "command": lines[0].strip(),
            "entrypoint": entrypoint,
            "default": self.config.debug_entrypoint,
            "limit_s": self.talk.command_timeout_s,
        }
        started = f'python3 "{_HOME}/debugger.py" {shlex.quote(json.dumps(order))}'
        # Coming to where the command is given may take as long again, and pdb is given a moment to show a hang.
        result = await self.talk.execute(started, turn, timeout_s=2 * self.talk.command_timeout_s + 5)
        said = self._observation(result)
        more = "\n(one command a call: the other lines were not run)" if len(lines) > 1 else ""
        return said if said is None else said + more

    async def _install(self, turn: Turn) -> bool:
        """Puts the debugger into the sandbox, outside of the repository; False when the time is over."""
        if self.is_debugger_there:
            return True
        for name in _SCRIPTS:
            await self.talk.work.sandbox.write_file(f"{_CARRIED}/{name}", (_INSIDE / name).read_bytes())
        moved = f'mkdir -p "{_HOME}" && mv {_CARRIED}/* "{_HOME}" && rmdir {_CARRIED}'
        self.is_debugger_there = await self.talk.execute(moved, turn) is not None
        return self.is_debugger_there

    def _inside(self, path: str) -> str:
        """Returns the path relative to the repository if it is in it."""
        workdir = self.talk.work.sandbox.workdir.rstrip("/") + "/"
        if path.startswith(workdir):
            return path[len(workdir) :] or "."
        return path

    def _observation(self, result: ExecResult | None) -> str | None:
        if result is None:
            return None
        return format_observation(result, self.config.max_observation_chars)

    def _short(self, text: str) -> str:
        return shorten_text(text, self.config.max_observation_chars)


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str


def _edit_text(before: str | None, new: str, old: str | None, start: int | None, end: int | None) -> str | Refusal:
    """Returns the file's new text, or why there is none."""
    if before is None:
        if old in (None, "") and start is None:
            return new
        return Refusal("there is no such file")
    if old is not None and start is not None:
        return Refusal("give either old, or start and end")
    if start is not None:
        lines = lines_of(before)
        last = start if end is None else end
        if not 1 <= start <= last <= len(lines):
            return Refusal(f"lines {start} to {last} are not in the file, which has {len(lines)}")
        cut_off = new != "" and not new.endswith("\n") and lines[last - 1].endswith("\n")
        text = new + "\n" if cut_off else new
        return "".join([*lines[: start - 1], text, *lines[last:]])
    if not old:
        return Refusal("it exists: give old, or start and end, to say what is replaced")
    count = before.count(old)
    if count != 1:
        return Refusal(
            f"`old` is in the file {count} times; it has to be there once" if count else "`old` is not in it"
        )
    return before.replace(old, new)


def _show_diff(path: str, before: str, after: str) -> str:
    """Shows an edit as a diff. An edit changes one place, from the first line that differs to the last: that is found
    in linear time."""
    old = lines_of(before)
    new = lines_of(after)
    if old == new:
        return f"{path} is as it was"
    shorter = min(len(old), len(new))
    first = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    # So many lines at the end are the same.
    same = next((at for at in range(shorter - first) if old[-1 - at] != new[-1 - at]), shorter - first)
    begin = max(0, first - _DIFF_LINES)
    removed = len(old) - same
    added = len(new) - same
    tail = old[removed : removed + _DIFF_LINES]
    old_span, new_span = (
        Span(begin + (size > 0), size) for size in (removed + len(tail) - begin, added + len(tail) - begin)
    )
    lines = [str(HunkHeader(old_span, new_span))]
    lines += [f" {line}" for line in old[begin:first]] + [f"-{line}" for line in old[first:removed]]
    lines += [f"+{line}" for line in new[first:added]] + [f" {line}" for line in tail]
    return "\n".join([f"Edited {path}:", *(line.removesuffix("\n") for line in lines)])
