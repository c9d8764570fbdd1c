"""Holds the text of a Python file, and changes it at nodes of its syntax tree.

Invariants:
- What is not changed keeps its characters: comments, blank lines and quotes stay, as tests may read their file.
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Holds the text that takes the place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: str


class SourceText:
    """Holds a file as bytes, because the syntax tree counts columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self.data = text.encode("utf-8")

    @cached_property
    def _line_starts(self) -> list[int]:
        ends = re.finditer(rb"\r\n|\n|\r", self.data)
        return sorted({0, *(end.end() for end in ends), len(self.data)})

    def line_start(self, line_number: int) -> int:
        """Returns the offset in bytes at which a line begins; the first line is number 1."""
        return self._line_starts[line_number - 1]

    def line_end(self, node: ast.stmt) -> int:
        """Returns the offset in bytes at which a statement's last line ends, so that its comment belongs to it."""
        assert node.end_lineno is not None
        start = self.line_start(node.end_lineno)
        line = self.data[start : self.line_start(node.end_lineno + 1)]
        return start + len(line.rstrip(b"\r\n"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Returns the offsets in bytes at which a node begins and ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.line_start(node.lineno) + node.col_offset
        end = self.line_start(node.end_lineno) + node.end_col_offset
        return start, end

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        """Returns the source text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode("utf-8")

    def replace(self, node: ast.expr, text: str) -> TextEdit:
        """Returns the change that puts `text` in the place of a node."""
        start, end = self.span(node)
        return TextEdit(start, end, text)

    def lines_before(self, position: int) -> int:
        """Returns how many lines end before an offset in bytes."""
        return bisect_right(self._line_starts, position) - 1

    def changed(self, edits: Iterable[TextEdit], start: int = 0, end: int | None = None) -> str:
        """Returns the text from `start` to `end` (in bytes) after the edits, which must lie inside and not overlap."""
        pieces: list[bytes] = []
        position = start
        for edit in sorted(edits, key=lambda edit: edit.start):
            assert position <= edit.start <= edit.end, "edits overlap"
            pieces.append(self.data[position : edit.start])
            pieces.append(edit.text.encode("utf-8"))
            position = edit.end
        pieces.append(self.data[position : len(self.data) if end is None else end])
        return b"".join(pieces).decode("utf-8")
