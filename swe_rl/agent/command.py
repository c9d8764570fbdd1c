"""This module reads what a model's message asks for: one fenced bash block, or a format error.

Invariants:
- Parsing has no effects and never raises, whatever the message.
- Fences are whole lines: three backticks at the start of a line. Blocks of other languages are prose.
- Reasoning up to the last `</think>` is not looked at; one inside of a command's own block belongs to the command.
- A command is never cut: where fences show that its block ended before the command did, that is a format error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from swe_rl.files.lines import lines_of

_OPENING = re.compile(r"```[ \t]*([A-Za-z0-9_+.-]*)$")
_CLOSING = re.compile(r"```[ \t]*$")
_REASONING_END = "</think>"
# Each document is looked for to the end of the command, so their number is bounded.
_MOST_DOCUMENTS = 20
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*[\\'\"]?([A-Za-z_]\w*)")


class FormatError(StrEnum):
    """Says why a message holds no command."""

    no_block = "no bash block"
    several_blocks = "more than one bash block"
    empty_block = "an empty bash block"
    unclosed_block = "a bash block without its end"


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """Exactly one of `command` and `error` is set; `submit` says that the command is the submit marker."""

    command: str | None = None
    submit: bool = False
    error: FormatError | None = None
    # The command's block is in this language.
    language: str = "bash"


def parse_command(message: str, languages: Sequence[str] = ("bash",)) -> ParsedCommand:
    """Reads the one block of `message` in one of `languages`; its text is kept as it is, without its last newline."""
    blocks = _find_blocks(_without_reasoning(message, languages))
    commands = [block for block in blocks if block.language in languages]
    if len(commands) > 1:
        return ParsedCommand(error=FormatError.several_blocks)
    if not commands:
        return ParsedCommand(error=FormatError.no_block)
    [command] = commands
    if not blocks[-1].is_closed or (blocks[-1] is not command and _lacks_its_end(command.text)):
        return ParsedCommand(error=FormatError.unclosed_block)
    if not command.text.strip():
        return ParsedCommand(error=FormatError.empty_block)
    return ParsedCommand(command=command.text, submit=_is_submit(command.text), language=command.language)


def _without_reasoning(message: str, languages: Sequence[str]) -> str:
    """Returns what follows the reasoning. Its end is the first place after which each `</think>` is in a command."""
    ends = [match.end() for match in re.finditer(_REASONING_END, message)]
    if not ends:
        return message
    starts = [ends[0], ends[-1]] if message.lstrip().startswith("<think>") else [0, ends[0], ends[-1]]
    for start in starts:
        text = message[start:]
        if text.count(_REASONING_END) == _ends_in_commands(text, languages):
            return text
    return message[ends[-1] :]


def _ends_in_commands(text: str, languages: Sequence[str]) -> int:
    """Counts the ends of reasoning that stand in commands. A block with another one's opening in it began in the
    reasoning."""
    commands = [block.text for block in _find_blocks(text) if block.language in languages and block.is_closed]
    whole = [command for command in commands if not any(_opens_block(line, languages) for line in command.split("\n"))]
    return sum(command.count(_REASONING_END) for command in whole)


def _opens_block(line: str, languages: Sequence[str]) -> bool:
    opening = _OPENING.match(line.rstrip(" \t"))
    return opening is not None and opening[1] in languages


@dataclass(frozen=True, slots=True)
class _FencedBlock:
    language: str
    text: str
    is_closed: bool


def _find_blocks(text: str) -> list[_FencedBlock]:
    """Returns all fenced blocks; the text may end inside of the last one."""
    blocks: list[_FencedBlock] = []
    # This is the language of the open block.
    language: str | None = None
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if language is None:
            opening = _OPENING.match(line.rstrip(" \t"))
            if opening:
                language = opening[1]
                lines = []
        elif _CLOSING.match(line):
            blocks.append(_FencedBlock(language, "\n".join(lines), is_closed=True))
            language = None
        else:
            lines.append(line)
    if language is None:
        return blocks
    return [*blocks, _FencedBlock(language, "\n".join(lines), is_closed=False)]


def _lacks_its_end(command: str) -> bool:
    """Tells whether a document `<<'END'` lacks its last line: then a fence of the document's own has ended the
    block."""
    for match in islice(_DOCUMENT.finditer(command), _MOST_DOCUMENTS):
        end = re.compile(rf"^\t*{re.escape(match[1])}[ \t]*$", re.MULTILINE)
        if not end.search(command, match.end()):
            return True
    return False


def _is_submit(command: str) -> bool:
    """Tells whether the command is one line whose first word is `submit`; anywhere else the word is only a word."""
    lines = lines_of(command.strip(), ends=False)
    return len(lines) == 1 and lines[0].split()[0] == "submit"
