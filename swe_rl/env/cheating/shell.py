"""Takes a shell command apart far enough to say what it ran: programs, their arguments, and files written to.

Invariants:
- Nothing is run or expanded. What the shell's grammar makes hard to read is read roughly, and never raises.
- A here-document's text counts only where a program that would run it reads it.
- No pattern takes more time than the command is long.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

# No more of the line behind such a mark is read: from each further mark on, it would be read once more.
_HEREDOC = re.compile(
    r"<<-?[ \t]*(['\"]?)(?P<end>\w{1,100})\1(?P<rest>[^\n]{0,500})\n(?P<body>.*?)(?:^[ \t]*(?P=end)[ \t]*$|\Z)",
    re.M | re.S,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# The program that a command really runs stands behind these words.
_WRAPPERS = frozenset({"sudo", "env", "time", "command", "exec", "nice", "then", "do", "else", "!", "{", "("})
_INTERPRETERS = re.compile(r"(?:python[\d.]*|perl|ruby|node|(?:ba|da|z)?sh)")
_SHELLS = re.compile(r"(?:ba|da|z)?sh")
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n", ";;"})
_MAX_CHARS = 100_000  # the rest of a longer command is not read, because this runs on the event loop
_MAX_DEPTH = 3


@dataclass(slots=True)
class ShellCall:
    """Holds one simple command."""

    words: list[str] = field(default_factory=list)  # the first one is the program's name, without its folder
    written: list[str] = field(default_factory=list)  # these are targets of > and >>
    assigned: list[str] = field(default_factory=list)  # these stand before it as NAME=value
    code: str = ""  # this was given to an interpreter to run

    @property
    def program(self) -> str:
        """Returns the program's name, or nothing for a call that only assigns or writes."""
        return self.words[0] if self.words else ""


def calls_of(command: str, depth: int = 0) -> list[ShellCall]:
    """Returns every simple command in `command`, also those that a nested `bash -c` runs."""
    documents: list[str] = []

    def take_document(match: re.Match[str]) -> str:
        documents.append(match["body"])
        return f"<<{match['end']}{match['rest']}\n"

    text = _HEREDOC.sub(take_document, command[:_MAX_CHARS])
    calls: list[ShellCall] = []
    for tokens in _simple_commands(text):
        call = _parse_call(tokens, documents)
        calls.append(call)
        if call.code and _SHELLS.fullmatch(call.program) and depth < _MAX_DEPTH:
            calls += calls_of(call.code, depth + 1)
    return calls


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yields the tokens of each simple command of a text."""
    text = re.sub(r"\$\(|`|\)", " ; ", text.replace("\\\n", " "))
    has_open_lines = text.count("'") % 2 or text.count('"') % 2
    for line in [text] if has_open_lines else text.split("\n"):
        tokens: list[str] = []
        for token in [*_split_tokens(line), ";"]:
            if token not in _SEPARATORS:
                tokens.append(token)
            elif tokens:
                yield tokens
                tokens = []


def _split_tokens(line: str) -> list[str]:
    """Returns the tokens of a line, read roughly where a quote stays open."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quote is open in a text of several lines
        return re.findall(r"&&|\|\||[;|&<>]+|[^\s;|&<>]+", line)


def _parse_call(tokens: list[str], documents: list[str]) -> ShellCall:
    """Returns what a simple command runs and writes. One that reads a here-document takes the first of `documents`."""
    call = ShellCall()
    document = ""
    rest = iter(tokens)
    for token in rest:
        if re.fullmatch(r"&?[<>]+&?\|?", token):
            target = next(rest, "")
            if ">" in token:
                call.written.append(target)
            elif token.startswith("<<") and documents:
                document = documents.pop(0)
        elif call.words or not (_ASSIGNMENT.match(token) or token in _WRAPPERS):
            call.words.append(token)
        elif token not in _WRAPPERS:
            call.assigned.append(token)
    if call.program == "timeout":
        call.words = _without_timeout(call.words)
    if call.words:
        call.words[0] = call.words[0].rsplit("/", 1)[-1]
    if _INTERPRETERS.fullmatch(call.program):
        given = [
            code for flag, code in zip(call.words, call.words[1:], strict=False) if re.fullmatch("-[a-z]*[ce]", flag)
        ]
        call.code = given[0] if given else document
    return call


def _without_timeout(words: list[str]) -> list[str]:
    """Returns the words of the command that `timeout`, its options and its time stand before."""
    first = next((index for index, word in enumerate(words) if index and not word.startswith("-")), len(words))
    return words[first + 1 :]
