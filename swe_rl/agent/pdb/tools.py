"""This module describes the debugging agent's tools to the model, and says which of them it has.

Invariants:
- The list never changes within an attempt: it is part of the prompt.
- Every argument is a string or an integer; what a model gives is checked, and what is wrong is told, not raised.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swe_rl.errors import UserError

# With these agent.tools, pdb may be used after so many edits; rewrite_only never has it.
EDITS_BEFORE_PDB = {"full": 0, "debug_after_5": 5}
_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}


class ToolArgumentError(Exception):
    """Says what the model is told about the arguments that it gave."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    needed: Mapping[str, str] = field(default_factory=dict)  # Maps names to descriptions.
    optional: Mapping[str, str] = field(default_factory=dict)
    integers: frozenset[str] = frozenset()

    def schema(self) -> dict[str, Any]:
        """Returns the tool in OpenAI's shape."""
        properties = {
            name: {**(_INTEGER if name in self.integers else _STRING), "description": said}
            for name, said in {**self.needed, **self.optional}.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(self.needed)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def arguments(self, written: str) -> dict[str, Any]:
        """Reads the arguments of a call. Raises ToolArgumentError."""
        try:
            given = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise ToolArgumentError(f"the arguments of {self.name} are not JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolArgumentError(f"the arguments of {self.name} are not a JSON object")
        given = {name: value for name, value in given.items() if value is not None}
        unknown = sorted(set(given) - set(self.needed) - set(self.optional))
        missing = sorted(set(self.needed) - set(given))
        if unknown or missing:
            wrong = [f"no argument {name!r}" for name in unknown] + [f"needs {name!r}" for name in missing]
            raise ToolArgumentError(f"{self.name}: {', '.join(wrong)}")
        return {name: self._value(name, value) for name, value in given.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name in self.integers:
            try:
                return int(str(value))
            except ValueError:
                raise ToolArgumentError(f"{self.name}: {name!r} is a number, not {value!r}") from None
        if not isinstance(value, str):
            raise ToolArgumentError(f"{self.name}: {name!r} is a text, not {value!r}")
        return value


_PATH = "relative to the repository"
_LINES = frozenset({"start", "end"})
_BASH = Tool("bash", "Run a command in the repository's root, in a new shell.", {"command": "what bash runs"})
_VIEW = Tool(
    "view",
    "Show a file with line numbers.",
    {"path": _PATH},
    {"start": "first line", "end": "last line"},
    integers=_LINES,
)
_GREP = Tool(
    "grep",
    "Find lines that match a pattern in the repository's text files.",
    {"pattern": "an extended regular expression"},
    {"path": "file or folder to search"},
)
_EDIT = Tool(
    "edit",
    "Change a file: replace the one place that says `old`, or lines `start` to `end`, by `new`. A path that does not "
    "exist makes a new file.",
    {"path": _PATH, "new": "the text that shall stand there"},
    {"old": "the text that stands there now, once", "start": "first line replaced", "end": "last line replaced"},
    integers=_LINES,
)
_PDB = Tool(
    "pdb",
    "Give one command to the debugger pdb (b FILE:LINE, c, n, s, p EXPRESSION, w, l, ...). The session and its "
    "breakpoints stay from call to call; after an edit the program starts again.",
    {"command": "one pdb command"},
    {"entrypoint": "a shell command that runs a program under pdb: python -m pdb -m pytest TEST; starts it anew"},
)
_SUBMIT = Tool("submit", "Hand in the changes in the working tree and end the work.")
# Says for each agent.tools whether pdb is among them.
TOOLS = {"full": True, "rewrite_only": False, "debug_after_5": True}


def tools_of(kind: str) -> dict[str, Tool]:
    """Returns the tools by name, in the order of the prompt. Raises UserError for an unknown agent.tools."""
    if kind not in TOOLS:
        raise UserError(f"agent.tools={kind!r} is not known to agent=pdb; choose one of: {', '.join(TOOLS)}")
    debugger = (_PDB,) if TOOLS[kind] else ()
    return {tool.name: tool for tool in (_BASH, _VIEW, _GREP, _EDIT, *debugger, _SUBMIT)}
