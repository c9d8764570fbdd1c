"""A hunk's header is read and written in one place."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.env.patch_hunks import HunkHeader, Span, changed_places, read_header, split_hunks

NUMBERS = st.integers(0, 10**9)
SPANS = st.builds(Span, NUMBERS, st.none() | NUMBERS)
HEADERS = st.builds(HunkHeader, SPANS, SPANS, st.sampled_from(["", " def f():", " @@ -1 +1 @@", "\n line\n"]))


@given(HEADERS)
def test_a_header_is_read_as_it_was_written(header):
    assert read_header(str(header)) == header


def test_a_count_that_is_left_out_is_one_line():
    header = read_header("@@ -3 +4,0 @@ class A:\n")
    assert (header.old.lines, header.new.lines, header.section) == (1, 0, " class A:\n")


@pytest.mark.parametrize("line", ["@@ -1 @@", " @@ -1 +1 @@", "@@ --1 +1 @@", f"@@ -{'9' * 5000} +1 @@", ""])
def test_other_lines_are_no_header(line):
    assert read_header(line) is None


def test_hunks_and_what_comes_before_them_are_the_text():
    text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-@@ -1 +1 @@\n+\x0c\n@@ -9 +9,2 @@\n x\n+y"
    before, hunks = split_hunks(text)
    assert "".join([*before, *(line for hunk in hunks for line in hunk)]) == text
    assert [hunk[0] for hunk in hunks] == ["@@ -1 +1 @@\n", "@@ -9 +9,2 @@\n"]
    assert split_hunks("Binary files differ\n") == (["Binary files differ\n"], [])


def test_changed_places_are_where_git_says(tmp_path):
    """Git names the first line of each place if it shows no lines around it."""
    old = [f"{number}\n" for number in range(30)]
    new = [*old[:3], "a\n", "b\n", *old[5:9], *old[10:12], "c\n", *old[12:]]
    for name, lines in (("old", old), ("new", new)):
        (tmp_path / name).write_text("".join(lines))

    def diff(context):
        words = ["git", "diff", "--no-index", f"-U{context}", "old", "new"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout

    bare = [read_header(hunk[0]).old for hunk in split_hunks(diff(0))[1]]
    wide = [place for hunk in split_hunks(diff(3))[1] for place in changed_places(hunk)]
    assert [(span.start + (not span.lines), span.lines) for span in bare] == [(at, len(lost)) for at, lost, _ in wide]
    assert wide == [(4, ["3", "4"], ["a", "b"]), (10, ["9"], []), (13, [], ["c"])]
