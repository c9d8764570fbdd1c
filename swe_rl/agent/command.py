"""What a model's message asks for: one fenced bash block, or a format error.

Invariants:
- Pure; never raises, whatever the message.
- Fences are whole lines: three backticks at the start of a line. Blocks of other languages are prose.
- Reasoning up to the last `</think>` is not looked at.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_OPENING = re.compile(r"```[ \t]*([A-Za-z0-9_+.-]*)$")
_CLOSING = re.compile(r"```[ \t]*$")


class FormatError(StrEnum):
    """Why a message holds no command."""

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
    language: str = "bash"  # of its block


def parse_command(message: str, languages: Sequence[str] = ("bash",)) -> ParsedCommand:
    """Reads the one block of `message` in one of `languages`; its text is kept as it is, without its last newline."""
    blocks, unclosed = _blocks(message.rpartition("</think>")[2], languages)
    if len(blocks) + unclosed > 1:
        return ParsedCommand(error=FormatError.several_blocks)
    if unclosed:
        return ParsedCommand(error=FormatError.unclosed_block)
    if not blocks:
        return ParsedCommand(error=FormatError.no_block)
    language, command = blocks[0]
    if not command.strip():
        return ParsedCommand(error=FormatError.empty_block)
    return ParsedCommand(command=command, submit=_is_submit(command), language=language)


def _blocks(text: str, languages: Sequence[str]) -> tuple[list[tuple[str, str]], bool]:
    """The closed blocks in one of `languages` with their language, and whether the text ends inside one."""
    blocks: list[tuple[str, str]] = []
    language: str | None = None  # of the open block
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if language is None:
            opening = _OPENING.match(line.rstrip(" \t"))
            if opening:
                language, lines = opening[1], []
        elif _CLOSING.match(line):
            if language in languages:
                blocks.append((language, "\n".join(lines)))
            language = None
        else:
            lines.append(line)
    return blocks, language in languages


def _is_submit(command: str) -> bool:
    """One line whose first word is `submit`; anywhere else the word is only a word."""
    lines = command.strip().splitlines()
    return len(lines) == 1 and lines[0].split()[0] == "submit"
