"""Takes single tests out of a file of tests, so that an agent does not see the tests that judge it.

Invariants:
- What is left is Python, and has all other tests.
- A class that would be empty goes with its last test.
- Comments above a test and below its last statement are about the test, so they go with it.
"""

import ast
from collections.abc import Collection, Iterator, Sequence

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
        del lines[_first_comment(lines, first) - 1 : _last_comment(lines, first, last)]
    left = "\n".join(lines).rstrip("\n") + "\n"
    try:
        ast.parse(left)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return left


def _first_comment(lines: Sequence[str], first: int) -> int:
    """Returns the first line of what belongs to a test that begins in line `first`: comments right above it."""
    while first > 1 and _is_comment(lines[first - 2]):
        first -= 1
    return first


def _last_comment(lines: Sequence[str], first: int, last: int) -> int:
    """Returns the last line of what belongs to a test, with comments that are indented more and empty lines."""
    depth = _indent(lines[first - 1])
    while last < len(lines):
        line = lines[last]
        if line.strip() and not (_is_comment(line) and _indent(line) > depth):
            break
        last += 1
    return last


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


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
