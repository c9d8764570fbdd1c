"""A shell command taken apart far enough to say what it ran: programs, their arguments, and files written to.

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
_WRAPPERS = frozenset({"sudo", "env", "time", "command", "exec", "nice", "then", "do", "else", "!", "{", "("})
_WITH_VALUE = frozenset({"timeout"})  # its first argument is a time
_SHELLS = re.compile(r"^(?:\S*/)?(?:ba|da|z)?sh$")
_INTERPRETERS = re.compile(r"^(?:\S*/)?(?:python[\d.]*|perl|ruby|node|(?:ba|da|z)?sh)$")
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n", ";;"})
_MAX_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class Call:
    """One simple command; `code` is what an interpreter in it was given to run."""

    program: str  # without its folder
    arguments: tuple[str, ...]
    written: tuple[str, ...] = ()  # targets of > and >>
    assigned: tuple[str, ...] = ()  # NAME=value before it
    code: str = ""

    @property
    def text(self) -> str:
        return " ".join((self.program, *self.arguments))


def calls_of(command: str, depth: int = 0) -> list[Call]:
    """Every simple command in `command`, those that a nested `bash -c` runs included."""
    calls: list[Call] = []
    text, documents = _without_documents(command[:_MAX_CHARS])
    for words in _simple_commands(text):
        call = _call(words, documents)
        if call is None:
            continue
        calls.append(call)
        if call.code and _SHELLS.match(call.program) and depth < 3:
            calls += calls_of(call.code, depth + 1)
    return calls


def _without_documents(command: str) -> tuple[str, list[str]]:
    """The command without the lines of its here-documents, and those."""
    kept, documents, lines = list[str](), list[str](), command.split("\n")
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
    text = re.sub(r"\$\(|`|\)", " ; ", re.sub(r"\\\n", " ", text))
    for line in text.split("\n") if text.count("'") % 2 == 0 and text.count('"') % 2 == 0 else [text]:
        words: list[str] = []
        for token in _tokens(line):
            if token in _SEPARATORS:
                yield words
                words = []
            else:
                words.append(token)
        yield words


def _tokens(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # an open quote: a text of several lines
        return re.findall(r"&&|\|\||[;|&<>]+|[^\s;|&<>]+", line)


def _call(words: list[str], documents: list[str]) -> Call | None:
    assigned, written, rest = list[str](), list[str](), list[str]()
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
    return Call(
        program=program,
        arguments=tuple(rest[1:]),
        written=tuple(written),
        assigned=tuple(assigned),
        code=_code(program, rest[1:], documents.pop(0) if reads_document and documents else ""),
    )


def _code(program: str, arguments: list[str], document: str) -> str:
    if not _INTERPRETERS.match(program):
        return ""
    for option, value in zip(arguments, arguments[1:], strict=False):
        if re.fullmatch(r"-[a-z]*[ce]", option):
            return value
    return document
