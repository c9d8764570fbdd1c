"""Takes shell commands apart far enough to say what they run: programs, their arguments, and files written to.

Invariants:
- Nothing is run or expanded. What the shell's grammar makes hard to read is read roughly, and never raises.
- A here-document's text counts only where a program that would run it reads it.
- No pattern takes more time than the commands are long.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Neither `<<<` nor a shifted number begins a document. No more of the line behind such a mark is read: from each
# further mark on, it would be read once more.
_HEREDOC = re.compile(
    r"(?<!<)<<-?[ \t]*(['\"]?)(?P<end>[A-Za-z_]\w{0,99})\1(?P<rest>[^\n]{0,500})\n"
    r"(?P<body>.*?)(?:^[ \t]*(?P=end)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_QUOTED = r"""'(?P<plain>[^']*+)'|"(?P<text>(?:[^"\\]|\\.)*+)"|\\(?P<escaped>.)"""
_UNQUOTE = re.compile(_QUOTED, re.DOTALL)
# A quote that stays open is a word of one character.
_TOKEN = re.compile(
    rf"(?P<comment>\#[^\n]*)|(?P<operator>&?[<>]+&?\|?|[;|&\n]+)|(?P<word>(?:{_QUOTED}|[^\s'\"\\;|&<>])++)|['\"\\]",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# The program that a command really runs stands behind these words, and behind options of the programs among them.
_KEYWORDS = frozenset({"if", "elif", "while", "until", "then", "do", "else", "!", "{"})
_WRAPPERS = frozenset({"sudo", "env", "time", "command", "exec", "nice", "timeout"})
# `command -v PROGRAM` runs nothing.
_OF_WRAPPER = re.compile(r"-(?![vV]$).*|[\d.]+[smhd]?|(?:SIG)?(?:KILL|TERM|INT|HUP|QUIT)|\$\{?[A-Z_]+\}?")
_INTERPRETERS = re.compile(r"(?:python[\d.]*|perl|ruby|node|(?:ba|da|z)?sh)")
_SHELLS = re.compile(r"(?:ba|da|z)?sh")
_MAX_DEPTH = 3


@dataclass(slots=True)
class ShellCall:
    """Holds one simple command."""

    words: list[str] = field(default_factory=list)  # the first one is the program, which may have a folder
    written: list[str] = field(default_factory=list)  # these are targets of > and >>
    assigned: list[str] = field(default_factory=list)  # these stand before it as NAME=value
    code: str = ""  # this was given to an interpreter to run

    @property
    def program(self) -> str:
        """Returns the program's name, or nothing for a call that only assigns or writes."""
        return self.words[0].rsplit("/", 1)[-1] if self.words else ""


def calls_of(commands: str, depth: int = 0) -> list[ShellCall]:
    """Returns every simple command in `commands`, also those that a nested `bash -c` runs."""
    documents: list[str] = []

    def take_document(match: re.Match[str]) -> str:
        documents.append(match["body"])
        return f"<<{match['end']}{match['rest']}\n"

    text = _HEREDOC.sub(take_document, commands)
    calls: list[ShellCall] = []
    for tokens in _simple_commands(text):
        call = _parse_call(tokens, documents)
        calls.append(call)
        if call.code and _SHELLS.fullmatch(call.program) and depth < _MAX_DEPTH:
            calls += calls_of(call.code, depth + 1)
    return calls


def _simple_commands(text: str) -> Iterator[list[re.Match[str]]]:
    """Yields the tokens of each simple command of a text."""
    tokens: list[re.Match[str]] = []
    for token in _TOKEN.finditer(re.sub(r"\$\(|`|\)", " ; ", text.replace("\\\n", " "))):
        operator = token["operator"] or ""
        if token["comment"]:
            continue
        if not operator or "<" in operator or ">" in operator:
            tokens.append(token)
        elif tokens:
            yield tokens
            tokens = []
    if tokens:
        yield tokens


def _parse_call(tokens: list[re.Match[str]], documents: list[str]) -> ShellCall:
    """Returns what a simple command runs and writes. One that reads a here-document takes the first of `documents`."""
    call = ShellCall()
    document = ""
    is_wrapped = False
    rest = iter(tokens)
    for token in rest:
        operator = token["operator"]
        word = _UNQUOTE.sub(_without_quotes, token[0] if call.words else token[0].lstrip("("))
        if operator:
            target = next(rest, None)
            if ">" in operator and target:
                call.written.append(_UNQUOTE.sub(_without_quotes, target[0]))
            elif operator.startswith("<<") and documents:
                document = documents.pop(0)
        elif call.words:
            call.words.append(word)
        elif _ASSIGNMENT.match(word):
            call.assigned.append(word)
        elif word in _WRAPPERS:
            is_wrapped = True
        elif word and word not in _KEYWORDS and not (is_wrapped and _OF_WRAPPER.fullmatch(word)):
            call.words.append(word)
    if _INTERPRETERS.fullmatch(call.program):
        pairs = zip(call.words, call.words[1:], strict=False)
        given = [code for option, code in pairs if re.fullmatch("-[a-z]*[ce]", option)]
        call.code = given[0] if given else document
    return call


def _without_quotes(match: re.Match[str]) -> str:
    """Returns what a quoted part of a word stands for."""
    if match["text"] is not None:
        return re.sub(r"\\([\"\\$`])", r"\1", match["text"])
    return match["plain"] or match["escaped"] or ""
