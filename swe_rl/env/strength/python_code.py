"""Makes wrong variants of Python code: one place of the changed lines says something else.

Invariants:
- A variant parses, and its syntax tree differs from the right code's and from the code's before the fix.
- Docstrings, comments, and the text of strings are never what differs: no test has to look at them.
- The same two texts give the same variants in the same order.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from swe_rl.env.bugs.mutation import all_swaps
from swe_rl.files.lines import lines_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# These statements only report. Without them the code does the same, so no test could notice.
_REPORTS = re.compile(r"(self\.)?_?(log|logger|logging|warnings)\.|print\(")
# These functions give the same result when their first two arguments are exchanged.
_SYMMETRIC = frozenset({"gcd", "hypot", "isclose", "lcm", "max", "min"})
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Variant:
    """Holds one wrong file: `text` is the whole file.

    `line` counts from 1. `what` says in words what differs from the right code.
    """

    line: int
    what: str
    text: str


def code_fingerprint(text: str) -> str | None:
    """Returns what a file does, as far as its syntax tree tells, without docstrings and the text of strings.

    Returns None where the text does not parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            node.value = ""
    return ast.dump(tree)


def python_mutants(after: str, changed: frozenset[int]) -> Iterator[Variant]:
    """Yields mutants of the lines `changed` of a right file.

    A caller still has to compare fingerprints, because some mutants are the right code again.
    """
    lines = lines_of(after)
    for number in sorted(changed):
        for swap in all_swaps():
            yield from _swap_in_line(lines, number, swap.right, swap.wrong)
    yield from _of_tree(after, lines, changed)


def emptied_functions(after: str, changed: frozenset[int]) -> Iterator[Variant]:
    """Yields the file once for each innermost function with a changed line, with `return None` as its body."""
    lines = lines_of(after)
    functions: dict[int, _Function] = {}
    for node in ast.walk(ast.parse(after)):
        if isinstance(node, _Function):
            for number in changed.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
                functions[number] = node  # inner functions are walked after the outer ones
    for function in dict.fromkeys(functions[number] for number in sorted(functions)):
        text = _replace_span(lines, function.body[0], function.body[-1], "return None")
        yield Variant(function.lineno, f"the body of {function.name} is `return None`", text)


def _swap_in_line(lines: list[str], number: int, right: str, wrong: str) -> Iterator[Variant]:
    """Yields the file once for each place of a line that holds `right`, with `wrong` in its place.

    Some of these places are no code. A comparison of the syntax trees finds them later.
    """
    line = lines[number - 1]
    at = line.find(right)
    while at >= 0:
        text = line[:at] + wrong + line[at + len(right) :]
        changed = [*lines[: number - 1], text, *lines[number:]]
        yield Variant(number, f"`{right.strip()}` is `{wrong.strip()}`", "".join(changed))
        at = line.find(right, at + 1)


def _of_tree(after: str, lines: list[str], changed: frozenset[int]) -> Iterator[Variant]:
    """Yields the variants that exchange a node of the syntax tree on a changed line."""
    for node in ast.walk(ast.parse(after)):
        line = getattr(node, "lineno", 0)
        if line in changed:
            for what, first, last, text in _node_edits(node, lines):
                yield Variant(line, what, _replace_span(lines, first, last, text))


_Edit = tuple[str, ast.AST, ast.AST, str]


def _node_edits(node: ast.AST, lines: list[str]) -> Iterator[_Edit]:
    """Yields what a node may say instead: words, the first and the last node that are replaced, and the new text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        larger = repr(node.value + 1)
        yield f"`{node.value!r}` is `{larger}`", node, node, f"({larger})"
    if isinstance(node, ast.Return) and node.value is not None:
        yield "`return` gives None", node, node, "return None"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "a condition is negated", node.test, node.test, f"(not ({_node_text(lines, node.test)}))"
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            others = [_node_text(lines, other) for other in node.values if other is not value]
            word = " and " if isinstance(node.op, ast.And) else " or "
            joined = f"({word.join(f'({other})' for other in others)})"
            yield f"a condition lacks `{_node_text(lines, value):.40}`", node, node, joined
    if isinstance(node, ast.Call) and _order_matters(node):
        first, second = node.args[:2]
        yield "two arguments are exchanged", first, second, f"{_node_text(lines, second)}, {_node_text(lines, first)}"
    if _has_an_effect(node) and not _REPORTS.match(_node_text(lines, node)):
        yield f"`{_node_text(lines, node):.40}` is left out", node, node, "pass"


def _order_matters(call: ast.Call) -> bool:
    """Tells whether a call with its first two arguments exchanged may do something else."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_plain = len(call.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in call.args)
    return is_plain and name not in _SYMMETRIC


def _has_an_effect(node: ast.AST) -> bool:
    """Tells whether a node is a statement that can be left out, so that the code still runs and no name is missing."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete)


def _replace_span(lines: list[str], first: ast.AST, last: ast.AST, text: str) -> str:
    """Returns the file with `text` from the start of `first` to the end of `last`.

    The columns of nodes count bytes of UTF-8.
    """
    before = lines[first.lineno - 1].encode()[: first.col_offset].decode()  # type: ignore[attr-defined]
    after = lines[last.end_lineno - 1].encode()[last.end_col_offset :].decode()  # type: ignore[attr-defined]
    return "".join([*lines[: first.lineno - 1], f"{before}{text}{after}", *lines[last.end_lineno :]])  # type: ignore[attr-defined]


def _node_text(lines: list[str], node: ast.AST) -> str:
    """Returns the source text of a node."""
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    inside = [line.encode() for line in lines[first : last + 1]]
    inside[-1] = inside[-1][: node.end_col_offset]  # type: ignore[attr-defined]
    inside[0] = inside[0][node.col_offset :]  # type: ignore[attr-defined]
    return b"".join(inside).decode()
