"""Says in words what the new tests of a change are about: their docstrings' first sentences, else their names.

Invariants:
- Only tests that a patch adds are described. Of their code a few lines are given, for those who show an example.
"""

import ast
import re
from pathlib import Path

from swe_rl.env.mining.persons import without_persons
from swe_rl.env.mining.recipe import Edition
from swe_rl.env.mining.wording import words_of
from swe_rl.env.patch_files import added_tests, split_patch
from swe_rl.env.twins.make import tests_of
from swe_rl.env.twins.sites import Function

# These words begin what a test expects: an assertion, an error, a method of unittest.
_EXPECTATION = re.compile(r"\bassert|\braises\b|\bassert_\w+\(")
_MAX_EXAMPLE_LINES = 15
_MAX_DESCRIPTION_LINES = 6
_ENDS = (".", "!", "?", ":")
_EXAMPLE = ">>>"
# A table of cases is one line of code, however long it is.
_MAX_EXAMPLE_CHARS = 1500


def described_tests(test_patch: str, tree: Path, edition: Edition) -> dict[str, str]:
    """Returns a line for the name of each test that a patch adds. `tree` has the patch already."""
    lines: dict[str, str] = {}
    for part in split_patch(test_patch):
        added = set(added_tests(part.text))
        if part.is_removed or not added:
            continue
        described = descriptions_in(_text_of(tree / part.paths[-1]), edition)
        lines |= {name: described.get(name) or words_of(name) for name in sorted(added)}
    return lines


def descriptions_in(source: str, edition: Edition) -> dict[str, str]:
    """Returns what docstrings say of a file's tests, by their names, and none for a file that does not parse."""
    try:
        body = ast.parse(source).body
    except (ValueError, SyntaxError, RecursionError):
        return {}
    max_lines = 1 if edition is Edition.first else _MAX_DESCRIPTION_LINES
    beginnings = {test.name: _beginning_of_text(ast.get_docstring(test) or "", max_lines) for test in tests_of(body)}
    return {name: without_persons(line).strip() for name, line in beginnings.items()}


def _beginning_of_text(text: str, max_lines: int) -> str:
    """Returns a text up to its first line that ends a sentence or a paragraph, as one line."""
    lines: list[str] = []
    for line in text.split("\n")[:max_lines]:
        if not line.strip() or line.lstrip().startswith(_EXAMPLE):
            break
        lines.append(line.strip())
        if line.rstrip().endswith(_ENDS):
            break
    return " ".join(lines)


def examples_of(test_patch: str, tree: Path) -> dict[str, str]:
    """Returns the code of short tests that a patch adds, by their names. `tree` has the patch already."""
    examples: dict[str, str] = {}
    for part in split_patch(test_patch):
        added = set(added_tests(part.text))
        if part.is_removed or not added:
            continue
        shown = examples_in(_text_of(tree / part.paths[-1]))
        examples |= {name: shown[name] for name in sorted(added) if name in shown}
    return examples


def examples_in(source: str) -> dict[str, str]:
    """Returns the beginnings of a file's tests, each up to its first expectation, without docstrings and comments."""
    try:
        tests = list(tests_of(ast.parse(source).body))
    except (ValueError, SyntaxError, RecursionError):
        return {}
    examples = {test.name: _beginning_of(test) for test in tests}
    return {name: text for name, text in examples.items() if text}


def _beginning_of(test: Function) -> str:
    """Returns a test's code up to its first expectation, and an empty text where that is too long or not there."""
    body = test.body[1:] if ast.get_docstring(test) is not None else test.body
    kept: list[ast.stmt] = []
    for node in body:
        kept.append(node)
        text = ast.unparse(node)
        if _EXPECTATION.search(text):
            example = "\n".join(map(ast.unparse, kept))
            is_short = example.count("\n") < _MAX_EXAMPLE_LINES and len(example) <= _MAX_EXAMPLE_CHARS
            return example if is_short else ""
    return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
