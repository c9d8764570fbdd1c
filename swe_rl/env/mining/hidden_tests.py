"""Takes single tests out of a file of tests, so that an agent does not see the tests that judge it.

Invariants:
- What is left is Python, and has all other tests.
- A class that would be empty goes with its last test.
"""

import ast
from collections.abc import Collection, Iterator

from swe_rl.env.twins.sites import Function


def without_tests(source: str, names: Collection[str]) -> str | None:
    """Returns the source without the tests of these names, and None where they cannot be taken out.

    A name is `test_a`, or `TestC::test_a` for a method.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    removals = dict(_removals(module.body, frozenset(names), ""))
    if set(names) - {name for known in removals.values() for name in known}:
        return None
    lines = source.split("\n")
    for first, last in sorted(removals, reverse=True):
        while last < len(lines) and not lines[last].strip():
            last += 1
        del lines[first - 1 : last]
    left = "\n".join(lines).rstrip("\n") + "\n"
    try:
        ast.parse(left)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return left


def _removals(
    body: list[ast.stmt], names: frozenset[str], prefix: str
) -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """Yields the first and the last line of what goes, and the names of the tests that go with it."""
    for node in body:
        if isinstance(node, Function) and f"{prefix}{node.name}" in names:
            yield _lines_of(node), (f"{prefix}{node.name}",)
        elif isinstance(node, ast.ClassDef):
            inside = dict(_removals(node.body, names, f"{prefix}{node.name}::"))
            if len(inside) == len(node.body) > 0:
                yield _lines_of(node), tuple(name for known in inside.values() for name in known)
            else:
                yield from inside.items()


def _lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> tuple[int, int]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first, node.end_lineno or node.lineno
