"""What changelogs of several forms say of a version, without the names of persons."""

import pytest

from swe_rl.env.mining.changelog import entry_in, entry_of
from swe_rl.env.mining.persons import code_words_of, without_persons

MARKDOWN = """# Changelog

## [1.2.1](https://example.org/compare) (2024-05-01)

* An empty list no longer fails (#12)

## 1.2.0 - 2024-01-01

* New: lists
"""
UNDERLINED = """Version 1.2.1
=============

Released 2024-05-01

-   An empty list no longer fails. :issue:`12`

Version 1.2.0
=============

-   New: lists
"""
PLAIN = """1.2.1 (2024-05-01)
- An empty list no longer fails

1.2.0 (2024-01-01)
- New: lists
"""
NAMED = """History
-------

my_package 1.2.1
~~~~~~~~~~~~~~~~
An empty list no longer fails; needs Python 3.8 or 3.9.
1.2.0 showed this first in the list of faults that were reported by many users of this project, as it seems.

my_package 1.2
~~~~~~~~~~~~~~
New: lists
"""


@pytest.mark.parametrize("text", [MARKDOWN, UNDERLINED, PLAIN, NAMED])
def test_an_entry_ends_where_the_next_version_begins(text):
    entry = entry_in(text, "1.2.1")
    assert "An empty list no longer fails" in entry and "New: lists" not in entry
    assert not entry.startswith(("=", "~", "#"))
    assert entry_in(text, "1.3.0") == ""


def test_one_version_has_several_spellings_and_others_look_like_it():
    assert entry_in("2.5\n---\na\n\n2.4\n---\nb\n", "2.5.0") == "a"
    assert entry_in("1.0.10\n------\na\n\n1.0.1\n-----\nb\n", "1.0.1") == "b"
    assert entry_in("10\n--\n1.10\n----\na\n", "1.1") == ""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Fixed a bug by @someone in #4", "Fixed a bug in #4"),
        ("Fixed a bug (thanks to Jane Doe)", "Fixed a bug"),
        ("Fixed a bug. Contributed by Jane Doe.", "Fixed a bug."),
        ("Fixed a bug, by Jane Q. Doe", "Fixed a bug"),
        ("Divide by zero is an error", "Divide by zero is an error"),
        ("Sorted by Name and Date of the file", "Sorted by Name and Date of the file"),
        ("Write to jane@example.org", "Write to"),
        ("The decorator @property works", "The decorator @property works"),
        ("Mended (`@a` and @b-c)", "Mended"),
        ("- fixed join() of bytes (Jane Mary Doe)\n- next", "- fixed join() of bytes\n- next"),
        ("Mended (Jane Doe, John Doe-Smith).", "Mended."),
        ("Mended (someone-1, #214).\nFaster (\u66fe\u695a; report by @a, #2)", "Mended.\nFaster"),
        ("Mended. ([#6](https://a.b/6), [#7](https://a.b/7))", "Mended."),
        ("Use `f(x)` (or `#1`)", "Use `f(x)` (or `#1`)"),
        ("The (First Name) of it is kept", "The (First Name) of it is kept"),
        (":Released: 2026-11-15\n:Maintainer: Jane Doe\nNew", ":Released: 2026-11-15\n\nNew"),
        ("Mended by Øyvind Ærø and Łukasz Żak", "Mended"),
        ("Mended by Ана Иванова, \u66fe\u695a and @b", "Mended"),
        ("Mended, reported by Jane and Bob.", "Mended."),
        ("Mended by José de la Cruz and Bob. It is fast.", "Mended. It is fast."),
        ("Mended. Thanks to J. R. Ångström and his friend Bob. It is fast.", "Mended. It is fast."),
        ("Mended. Thanks to Jane\n  Doe for the report.\n- Other", "Mended.\n- Other"),
        ("Mended (#12, thanks to Jane Doe (@jane))", "Mended"),
        ("Message\n\nCo-authored-by: Jane Doe <j@a.org>\nReported-by: X\nSigned-off-by: Y", "Message\n\n\n\n"),
        ("Mended for Jane Doe <jane@example.org>", "Mended for"),
        ("@jane-doe: mended it, as @bob2 said, cc @carl", " mended it, as said,"),
        ("Mended by [Jane](https://github.com/jane), see [it](https://github.com/a/b)", "Mended, see [it]"),
        ("- mended\n  [jdoe]\n- next\n  [Jane Doe]", "- mended\n\n- next\n"),
        ("Mended. -- Jane Doe", "Mended."),
        ("- first\n- patch from Jane Doe\n- next", "- first\n- next"),
        ("Jane Doe reported that it fails", "Somebody reported that it fails"),
        ("Mended by Jane Doe\n\nNew Things come", "Mended\n\nNew Things come"),
        ("Mended. Patch by Bob and Ana Żak.", "Mended."),
        ("Mended (reported by jdoe.2)", "Mended"),
        ("Reported and mended by others; reported and fixed by Ана Иванова & Bob", "Reported and mended by others"),
        ("Mended (via Jürgen H.)\nMended. [Jan Novák]", "Mended\nMended."),
        ("Reads (from Bytes or text) what [The Parser] wrote (implemented by subclasses)", None),
        ("Credit cards are checked", "Credit cards are checked"),
        ("Use `@key` and @functools.cache and @cached(1) and @cached_property", None),
        ("The First Class is replaced by the second", None),
    ],
)
def test_texts_name_no_person(text, left):
    assert without_persons(text) == (text if left is None else left)


def test_a_word_after_an_at_that_the_code_has_is_no_account(tmp_path):
    code = 'TEXT = "@attr"\n\n\n@memoize\ndef f():\n    return "a @nobody"\n'
    assert code_words_of(code) == {"attr", "memoize"}
    said = "1.2.1\n-----\nThe @attr of @jane goes to @memoize\n"
    (tmp_path / "CHANGES").write_text(said)
    (tmp_path / "a.py").write_text(code)
    assert entry_of(tmp_path, "1.2.1") == "The @attr of goes to @memoize"


def test_the_changelog_of_a_tree_is_found_below_its_documentation_as_well(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "CHANGES").write_text("nothing here\n")
    (tmp_path / "docs" / "changelog.rst").write_text(UNDERLINED)
    (tmp_path / "docs" / "news.png").write_text(PLAIN)
    assert "no longer fails" in entry_of(tmp_path, "1.2.1")


def test_a_heading_may_be_a_link_to_a_comparison():
    link = "https://example.org/owner/project/compare"
    text = f"## [1.0.3]({link}/v1.0.2...v1.0.3) (2026-02-15)\n\n* new\n\n## [1.0.2]({link}/a...b)\n\n* old\n"
    assert (entry_in(text, "1.0.3"), entry_in(text, "1.0.2")) == ("* new", "* old")


def test_an_item_that_names_a_version_of_python_is_no_heading():
    text = "2.1\n- support Python 3.12, 3.13 officially\n- Drop Python 3.10 support (breaking change).\n\n2.0\n- old\n"
    assert entry_in(text, "2.1").split("\n")[1].startswith("- Drop") and entry_in(text, "3.12") == ""


def test_a_list_of_versions_says_what_is_new_behind_each():
    text = "- 0.10.0: Add support for Python 3.11, 3.12.\n  New format: `grid` (with alignment).\n- 0.9.0: Old.\n"
    assert entry_in(text, "0.10.0") == "Add support for Python 3.11, 3.12.\n  New format: `grid` (with alignment)."
    assert entry_in(text, "0.9.0") == "Old."
