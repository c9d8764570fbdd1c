"""Says in words what the new tests of a change are about: their docstrings' first lines, else their names.

Invariants:
- Only tests that a patch adds are described, and no line of their code is shown.
"""

import ast
from pathlib import Path

from swe_rl.env.mining.changelog import without_persons
from swe_rl.env.mining.wording import words_of
from swe_rl.env.patch_files import added_tests, split_patch
from swe_rl.env.twins.make import tests_of


def described_tests(test_patch: str, tree: Path) -> dict[str, str]:
    """Returns a line for the name of each test that a patch adds. `tree` has the patch already."""
    lines: dict[str, str] = {}
    for part in split_patch(test_patch):
        added = set(added_tests(part.text))
        if part.is_removed or not added:
            continue
        described = descriptions_in(_text_of(tree / part.paths[-1]))
        lines |= {name: described.get(name) or words_of(name) for name in sorted(added)}
    return lines


def descriptions_in(source: str) -> dict[str, str]:
    """Returns the docstrings' first lines of a file's tests by their names, and none for a file that does not parse."""
    try:
        body = ast.parse(source).body
    except (ValueError, SyntaxError, RecursionError):
        return {}
    first_lines = {test.name: (ast.get_docstring(test) or "").split("\n", 1)[0] for test in tests_of(body)}
    return {name: without_persons(line).strip() for name, line in first_lines.items()}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
