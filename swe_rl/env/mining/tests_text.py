"""Says in words what the new tests of a change are about: their docstrings' first lines, else their names.

Invariants:
- Only tests that a patch adds are described, and no line of their code is shown.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from swe_rl.env.mining.changelog import without_persons
from swe_rl.env.patch_files import added_tests, split_patch
from swe_rl.env.twins.make import tests_of

_MAX_DESCRIBED = 20


def described_tests(test_patch: str, tree: Path) -> list[str]:
    """Returns a line for each test that a patch adds, at most `_MAX_DESCRIBED`. `tree` has the patch already."""
    lines: list[str] = []
    for part in split_patch(test_patch):
        added = set(added_tests(part.text))
        if part.is_removed or not added:
            continue
        described = dict(_descriptions(tree / part.paths[-1]))
        lines += [described.get(name) or _words_of(name) for name in sorted(added)]
    return list(dict.fromkeys(lines))[:_MAX_DESCRIBED]


def _descriptions(path: Path) -> Iterator[tuple[str, str]]:
    """Yields names and docstrings' first lines of a file's tests, and nothing for a file that does not parse."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for test in tests_of(body):
        first_line = (ast.get_docstring(test) or "").split("\n", 1)[0]
        yield test.name, without_persons(first_line).strip()


def _words_of(name: str) -> str:
    """Returns `an empty list` for `test_an_empty_list`, and `EmptyList` for `testEmptyList`."""
    return name.removeprefix("test").strip("_").replace("_", " ") or name
