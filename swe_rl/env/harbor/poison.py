"""Changes what the verifier of a task expects, so that it must not pay for the right answer.

Invariants:
- One test of Python in tests/ expects something else, or one file of another language for which it is known how.
- What a verifier calls stays as it is. Nothing of this is in the task's own folder.
"""

import ast
import random
from collections.abc import Iterable
from pathlib import Path

from swe_rl.env.twins import siblings
from swe_rl.env.twins.make import poison_test, tests_of

_SEPARATOR = "::"


def poisonable(folder: Path) -> list[str]:
    """Returns the names of what can expect something else: Python's tests, or files where there are none.

    Raises OSError.
    """
    texts = _texts(folder)
    return [f"{path}{_SEPARATOR}{test}" for path, text in texts.items() for test in _tests_in(path, text)] or [*texts]


def poisoned_tests(folder: Path, names: Iterable[str], rng: random.Random) -> tuple[str, dict[str, bytes]]:
    """Returns the name of what expects something else now, and the changed files by their paths below `folder`.

    It is one of `names`, or "" where nothing can be changed. Raises OSError.
    """
    texts = _texts(folder)
    in_any_order = sorted(names)
    rng.shuffle(in_any_order)
    for name in in_any_order:
        path, _, test = name.partition(_SEPARATOR)
        text = texts[path]
        changed = poison_test(text, test, rng) if test else siblings.poison_file(path, text, rng)
        if changed and changed != text:
            return name, {path: changed.encode("utf-8")}
    return "", {}


def _texts(folder: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in siblings.LANGUAGES and path.is_file():
            try:
                texts[str(path.relative_to(folder))] = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
    return texts


def _tests_in(path: str, text: str) -> list[str]:
    if not path.endswith(".py"):
        return []
    try:
        return list(dict.fromkeys(test.name for test in tests_of(ast.parse(text).body)))
    except (SyntaxError, ValueError, RecursionError):
        return []
