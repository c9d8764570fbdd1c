"""Cuts a file's part of a patch into hunks, and reads and writes the line that a hunk begins with.

Invariants:
- The lines before the first hunk and the hunks together are the text.
- A header that is read and written again is the same: a count that was left out stays out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from swe_rl.files.lines import lines_of

_START = "@@ "
# More digits than a file can have lines are no header: Python refuses to read thousands of them as a number.
_HEADER = re.compile(r"@@ -(\d{1,18})(?:,(\d{1,18}))? \+(\d{1,18})(?:,(\d{1,18}))? @@")


@dataclass(frozen=True, slots=True)
class Span:
    """Holds the lines of one side that a hunk covers."""

    start: int
    count: int | None = None  # A diff leaves out the count of one line.

    @property
    def lines(self) -> int:
        return 1 if self.count is None else self.count

    def __str__(self) -> str:
        return str(self.start) if self.count is None else f"{self.start},{self.count}"


@dataclass(frozen=True, slots=True)
class HunkHeader:
    """Holds a hunk's first line. `str()` makes the line of it, without an end."""

    old: Span
    new: Span
    section: str = ""  # It stands behind the second `@@`, with its space and whatever follows.

    def __str__(self) -> str:
        return f"@@ -{self.old} +{self.new} @@{self.section}"


def read_header(text: str) -> HunkHeader | None:
    """Returns the header that the text begins with, and None where it begins with none."""
    match = _HEADER.match(text)
    if match is None:
        return None
    return HunkHeader(_read_span(match[1], match[2]), _read_span(match[3], match[4]), text[match.end() :])


def split_hunks(text: str) -> tuple[list[str], list[list[str]]]:
    """Returns the lines before the first hunk, and the lines of each hunk. All keep their ends."""
    lines = lines_of(text)
    starts = [number for number, line in enumerate(lines) if line.startswith(_START)]
    ends = [*starts, len(lines)]
    return lines[: ends[0]], [lines[start:end] for start, end in zip(starts, ends[1:], strict=True)]


def changed_places(hunk: list[str]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yields each run of changed lines of a hunk: where it begins in the old file, what it removes and what it adds.

    The lines have no signs and no newlines. The hunk is one that `split_hunks` returned.
    """
    header = read_header(hunk[0])
    number = header.old.start if header else 1
    removed: list[str] = []
    added: list[str] = []
    for line in [*hunk[1:], " "]:
        if line.startswith("-"):
            removed.append(line[1:].rstrip("\n"))
        elif line.startswith("+"):
            added.append(line[1:].rstrip("\n"))
        elif not line.startswith("\\"):
            if removed or added:
                yield number, removed, added
            number += len(removed) + 1
            removed = []
            added = []


def _read_span(start: str, count: str | None) -> Span:
    return Span(int(start), None if count is None else int(count))
