"""Takes a shell command apart far enough to say what it ran: programs, their arguments, and files written to.

Invariants:
- Nothing is run or expanded. What the shell's grammar makes hard to read is read roughly, and never raises.
- A here-document's text counts only where a program that would run it reads it.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_REDIRECT = re.compile(r"&?[<>]+&?\|?")
# The program that a command really runs stands behind these words.
_WRAPPERS = frozenset({"sudo", "env", "time", "command", "exec", "nice", "then", "do", "else", "!", "{", "("})
_WITH_VALUE = frozenset({"timeout"})  # its first argument is a time
_SHELLS = re.compile(r"^(?:\S*/)?(?:ba|da|z)?sh$")
_INTERPRETERS = re.compile(r"^(?:\S*/)?(?:python[\d.]*|perl|ruby|node|(?:ba|da|z)?sh)$")
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n", ";;"})
_MAX_CHARS = 100_000  # the rest of a longer command is not read, because this runs on the event loop


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Holds one simple command. `code` is what an interpreter in it was given to run."""

    program: str  # this is its name without its folder
    arguments: tuple[str, ...]
    written: tuple[str, ...] = ()  # these are targets of > and >>
    assigned: tuple[str, ...] = ()  # these stand before it as NAME=value
    code: str = ""

    @property
    def text(self) -> str:
        return " ".join((self.program, *self.arguments))


def calls_of(command: str, depth: int = 0) -> list[ShellCall]:
    """Returns every simple command in `command`, also those that a nested `bash -c` runs."""
    calls: list[ShellCall] = []
    text, documents = _without_documents(command[:_MAX_CHARS])
    for words in _simple_commands(text):
        call = _parse_call(words, documents)
        if call is None:
            continue
        calls.append(call)
        if call.code and _SHELLS.match(call.program) and depth < 3:
            calls += calls_of(call.code, depth + 1)
    return calls


def _without_documents(command: str) -> tuple[str, list[str]]:
    """Returns the command without the lines of its here-documents, and these documents."""
    kept = list[str]()
    documents = list[str]()
    lines = command.split("\n")
    index = 0
    while index < len(lines):
        line = lines[index]
        kept.append(line)
        index += 1
        for match in _HEREDOC.finditer(line):
            body = []
            while index < len(lines) and lines[index].strip() != match[2]:
                body.append(lines[index])
                index += 1
            index += 1
            documents.append("\n".join(body))
    return "\n".join(kept), documents


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each simple command of a text."""
    text = re.sub(r"\$\(|`|\)", " ; ", re.sub(r"\\\n", " ", text))
    for line in text.split("\n") if text.count("'") % 2 == 0 and text.count('"') % 2 == 0 else [text]:
        words: list[str] = []
        for token in _split_tokens(line):
            if token in _SEPARATORS:
                yield words
                words = []
            else:
                words.append(token)
        yield words


def _split_tokens(line: str) -> list[str]:
    """Returns the tokens of a line, read roughly where a quote stays open."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quote is open in a text of several lines
        return re.findall(r"&&|\|\||[;|&<>]+|[^\s;|&<>]+", line)


def _parse_call(words: list[str], documents: list[str]) -> ShellCall | None:
    """Returns what a simple command runs and writes, or None where it does nothing.

    A command that reads a here-document takes the first of `documents`.
    """
    assigned = list[str]()
    written = list[str]()
    rest = list[str]()
    reads_document = False
    skip = iter(words)
    for word in skip:
        if _REDIRECT.fullmatch(word) and ">" in word:
            written.append(next(skip, ""))
        elif _REDIRECT.fullmatch(word):
            reads_document = reads_document or word.startswith("<<")
            next(skip, None)
        elif not rest and _ASSIGNMENT.match(word):
            assigned.append(word)
        elif not rest and word in _WRAPPERS:
            continue
        else:
            rest.append(word)
    while rest and rest[0] in _WITH_VALUE:
        options = next((index for index, word in enumerate(rest[1:]) if not word.startswith("-")), len(rest))
        rest = rest[options + 2 :]
    if not rest and not written and not assigned:
        return None
    program = rest[0].rsplit("/", 1)[-1] if rest else ""
    return ShellCall(
        program=program,
        arguments=tuple(rest[1:]),
        written=tuple(written),
        assigned=tuple(assigned),
        code=_code_of_interpreter(program, rest[1:], documents.pop(0) if reads_document and documents else ""),
    )


def _code_of_interpreter(program: str, arguments: list[str], document: str) -> str:
    """Returns the code that an interpreter gets by an option or a here-document, and nothing for other programs."""
    if not _INTERPRETERS.match(program):
        return ""
    for option, value in zip(arguments, arguments[1:], strict=False):
        if re.fullmatch(r"-[a-z]*[ce]", option):
            return value
    return document
