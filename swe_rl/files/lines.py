"""This module cuts a text into lines as git, Python's files, JSON lines and every Unix program count them.

`str.splitlines` ends a line at further characters as well, among them the form feed of GNU's sources and U+2028, which
JSON writes as it is: two readers of one file then disagree about its lines. tests/files/test_files_lines.py keeps it
out.
"""

import re
from io import StringIO

_PRINTED_END = re.compile(r"\r\n|\n|\r")


def lines_of(text: str, ends: bool = True) -> list[str]:
    """Cuts at each newline alone. With `ends` the lines keep theirs, else they lack their `\\n` or `\\r\\n`."""
    lines = [*StringIO(text, newline="\n")]
    if ends:
        return lines
    return [line.removesuffix("\r\n").removesuffix("\n") for line in lines]


def printed_lines(text: str) -> list[str]:
    """Cuts what a program printed for people at each CR as well: with it a progress bar goes back to its start."""
    lines = _PRINTED_END.split(text)
    if lines[-1]:
        return lines
    return lines[:-1]
