"""What gives a fix away: in the text of a statement, and in files that an agent sees."""

import pytest

from swe_rl.env.folder import patch_between
from swe_rl.env.mining.leaks import added_lines, file_with_fix, shows_fix

BUG = patch_between(
    {"a.py": "def low(a, b):\n    return max(a, b)\n"}, {"a.py": "def low(a, b):\n    return min(a, b)\n"}
)
NONE_CHECK = patch_between({"a.py": "if value is not None:\n    pass\n"}, {"a.py": "if value is None:\n    pass\n"})
NEW_LINES = patch_between(
    {"a.py": "def total(numbers):\n    return 0\n"},
    {"a.py": "def total(numbers, strict=False):\n    # Nothing has a total.\n    numbers = sorted(numbers, key=abs)\n"},
)


@pytest.mark.parametrize(
    ("patch", "statement"),
    [
        (BUG, "- Low is ``min(a, b)`` of two numbers."),
        (BUG, "* low: `return  min( a,b )`"),
        (BUG, ">>> min(a, b)"),
        (NONE_CHECK, "The default is taken if value is None."),
        (NEW_LINES, "- numbers = sorted(numbers, key=abs)"),
        (NEW_LINES, "1. It does\n   `numbers = sorted(\n   numbers, key=abs)` now"),
    ],
)
def test_a_statement_that_has_the_changed_code_shows_the_fix(patch, statement):
    assert shows_fix(statement, patch)


@pytest.mark.parametrize(
    ("patch", "statement"),
    [
        (BUG, "The smaller of two: low(a, b), and not max(a, b)."),
        (BUG, "Low takes the min of a and b."),
        (NONE_CHECK, "A value that is None is not taken."),
        (NEW_LINES, "`total(numbers, strict=False)` is new. Nothing has a total."),
        (NEW_LINES, "Sorted by the key abs."),
        ("", "Anything."),
    ],
)
def test_a_statement_may_say_what_happens_and_how_it_is_called(patch, statement):
    assert not shows_fix(statement, patch)


def test_a_line_that_is_only_moved_gives_nothing_away():
    moved = patch_between(
        {"a.py": "if first:\n    run(first, now=True)\nelse:\n    pass\n"},
        {"a.py": "if first:\n    pass\nelse:\n    run(first, now=True)\n"},
    )
    assert not shows_fix("call run(first, now=True)", moved)
    assert [line.text for line in added_lines(BUG)] == ["return min(a, b)"]


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("docs/low.rst", "Low::\n\n    return min(a, b)\n", True),
        ("tests/test_a.py", "# low is: return min(a, b)\n", True),
        ("build/lib/a.py", "def low(a, b):\n    return min(a, b)\n", True),
        ("b.py", "def low(a, b):\n    return min(b, a)\n", False),
        ("b.py", "def lowest(a, b):\n    return min(a, b)\n", False),
        (".git/packed", "return min(a, b)", False),
    ],
)
def test_a_file_of_the_tree_that_has_the_fix_is_found(tmp_path, name, text, shown):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    (tmp_path / "a.py").write_text("def low(a, b):\n    return max(a, b)\n")
    assert file_with_fix(BUG, tmp_path) == (name if shown else "")


def test_of_installed_packages_only_another_copy_of_the_file_counts(tmp_path):
    (tmp_path / "other.py").write_text("return min(a, b)\n")
    assert file_with_fix(BUG, tmp_path, is_installed=True) == ""
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / "a.py").write_text("def low(a, b):\n    return min(a, b)\n")
    assert file_with_fix(BUG, tmp_path, is_installed=True) == "vendored/a.py"


def test_a_file_with_some_of_the_lines_is_no_copy_of_the_fix(tmp_path):
    fix = patch_between({"a.py": "x = 1\n"}, {"a.py": "x = first(a, b)\ny = second(a, b)\n"})
    (tmp_path / "other.txt").write_text("x = first(a, b)\n")
    assert file_with_fix(fix, tmp_path) == ""
    (tmp_path / "other.txt").write_text("x = first(a, b)\n\ny = second(a, b)\n")
    assert file_with_fix(fix, tmp_path) == "other.txt"
