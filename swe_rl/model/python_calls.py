"""This module reads calls of tools that a model writes as calls of Python, with keywords and literals.

Invariants:
- Templates (lfm2) write texts between quotes as they are: with newlines, and with the same quotes inside. Where Python
  cannot read that, a quote ends a text only where the format goes on behind it.
- What then still is no list of calls is none: nothing is guessed of a part.
"""

import ast
import re
from collections.abc import Collection

from swe_rl.model.tool_parser import ToolCall, make_call

# This follows a text in a list or in a dictionary.
_ITEM_ENDS = re.compile(r"\s*[,:\]}]")
_PYTHON_ESCAPES = {"\n": "\\n", "\r": "\\r", "\0": "\\x00"}


def read_python_calls(
    text: str, place: int, *, before: str, after: str, keywords: Collection[str]
) -> tuple[list[ToolCall], int] | None:
    """Reads a list of calls, or one call, from a place up to the mark `after`, or up to the end.

    `before` is the mark that stands before such a list, and `keywords` has the names of the offered parameters. Returns
    the calls and where they end. None means that there are none.
    """
    end = -1
    if after:
        end = text.find(after, place)
    if end < 0:
        end = len(text)
    written = text[place:end].strip()
    calls = _parse_calls(written)
    # Without a look for another mark, a text would be escaped once for each mark before it.
    if calls is None and not (before and before in written):
        calls = _parse_calls(escape_texts(written, keywords))
    if calls is None:
        return None
    return calls, end


def _parse_calls(written: str) -> list[ToolCall] | None:
    try:
        body = ast.parse(written, mode="eval").body
        nodes = [body]
        if isinstance(body, ast.List):
            nodes = body.elts
        calls = [_read_call(node) for node in nodes]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    whole = [call for call in calls if call is not None]
    if whole and len(whole) == len(calls):
        return whole
    return None


def _read_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
    if len(arguments) != len(node.keywords):
        return None
    return make_call(ast.unparse(node.func).removeprefix("functions."), arguments)


def escape_texts(written: str, keywords: Collection[str]) -> str:
    """Returns calls in which newlines and quotes inside of texts are escaped, as Python wants them.

    `keywords` has the names of all parameters. The time grows with the length alone: each character is looked at once.
    """
    argument_ends = _argument_ends(keywords)
    parts: list[str] = []
    brackets: list[str] = []
    at = 0
    while at < len(written):
        char = written[at]
        if written.startswith(("'''", '"""'), at):
            close = written.find(char * 3, at + 3)
            end = close + 3 if close >= 0 else len(written)
            parts.append(written[at:end])
            at = end
        elif char in "'\"":
            is_item = bool(brackets) and brackets[-1] != "("
            part, at = _escape_text(written, at, _ITEM_ENDS if is_item else argument_ends)
            parts.append(part)
        else:
            _count_bracket(brackets, char)
            parts.append(char)
            at += 1
    return "".join(parts)


def _argument_ends(keywords: Collection[str]) -> re.Pattern[str]:
    """Returns the pattern of what follows a text that is an argument: another one, or the end of its call."""
    names = "|".join(map(re.escape, keywords)) or r"[A-Za-z_]\w*"
    return re.compile(rf"\s*(?:,\s*(?:{names})\s*=|\)\s*(?:\]|\Z|,\s*[A-Za-z_][\w.]*\())")


def _count_bracket(brackets: list[str], char: str) -> None:
    if char in "([{":
        brackets.append(char)
    elif char in ")]}" and brackets:
        brackets.pop()


def _escape_text(written: str, start: int, ends: re.Pattern[str]) -> tuple[str, int]:
    """Returns the text between quotes that begins at `start`, escaped, and where it ends."""
    quote = written[start]
    parts = [quote]
    at = start + 1
    while at < len(written):
        char = written[at]
        at += 1
        if char == quote and ends.match(written, at):
            parts.append(quote)
            break
        if char == "\\" and at < len(written) and written[at] != "\n":
            parts.append(char + written[at])
            at += 1
        elif char in (quote, "\\"):
            parts.append("\\" + char)
        else:
            parts.append(_PYTHON_ESCAPES.get(char, char))
    return "".join(parts), at
