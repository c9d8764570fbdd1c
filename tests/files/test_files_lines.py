"""Lines of texts, and that nothing in the package cuts them in another way."""

import ast
from pathlib import Path

import pytest

from swe_rl.files.lines import lines_of, printed_lines

ROOT = Path(__file__).parents[2] / "swe_rl"
GENERATED = ROOT / "env" / "bugs" / "packages"  # other people's programs, as the tasks have them


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_newline_ends_a_line(mark):
    assert lines_of(f"a{mark}b\nc") == [f"a{mark}b\n", "c"]
    assert lines_of(f"a{mark}b\r\nc\n", ends=False) == [f"a{mark}b", "c"]


def test_an_empty_text_has_no_line():
    assert lines_of("") == lines_of("", ends=False) == printed_lines("") == []


def test_a_progress_bar_is_printed_line_by_line():
    assert printed_lines("a\r\n\n 1 %\r 2 %\nb") == ["a", "", " 1 %", " 2 %", "b"]


def test_nothing_cuts_lines_at_form_feeds():
    """`str.splitlines` cuts where git, an editor and a reader of JSON lines do not: then two parts of the product count
    different lines of one file. Texts are cut with `lines_of`, what programs print with `printed_lines`."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if GENERATED in path.parents:
            continue
        text = path.read_text(encoding="utf-8")
        if "splitlines" not in text:  # to parse every file takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
