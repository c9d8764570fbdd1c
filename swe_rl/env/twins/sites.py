"""Finds the places of a test at which its expectation can be exchanged without any change to the calls that it makes.

A place (`TwinSite`) is a change of the source text after which the test contradicts itself as it was. Places are ranked
by how much a session learns from them. A changed literal in place looks like any test: code that reads what its
caller expects, and objects that equal everything, satisfy the changed test as well, and so give themselves away.
Negation comes last, because objects that equal everything fail a negated test as right code does.

Invariants:
- Only what a test compares with, an exception that it expects, or how it compares is changed. The inputs of the calls
  stay: right code may differ on other inputs.
- What Python evaluates when it imports the file (the arguments of decorators) stays valid for any value: only written
  out literals are changed there, no argument of a call, because `datetime(2000, 1, 72)` would break the whole file.
- No twin lets an exception out that ends the whole session, as `KeyboardInterrupt` does.
- A site is found by the syntax tree alone. Whether the changed test really fails on right code is for a run to show.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from swe_rl.env.twins.assertions import (
    COMPARED,
    EXPECTATIONS,
    EXPECTING_ERRORS,
    OPPOSITES,
    OWN_ASSERTION,
    unrelated_exceptions,
)
from swe_rl.env.twins.source import SourceText, TextEdit
from swe_rl.env.twins.values import changeable_constants, is_literal, other_literals

# The results of these differ with each of their arguments, so a changed argument changes the expectation.
_WRAPPING = frozenset({"approx", "call", "set", "frozenset", "dict", "list", "tuple", "array", "date", "datetime"})
# These stand around an expectation that is known only when the test runs. It stays what it is in the way 1, and becomes
# another value of the same type in five other ways, where that is easy to say. An object that equals everything but
# values of one type would pass a test and fail a twin that always expects this type.
_BEFORE = (
    "(lambda it, way: it if way == 1 else it * way if isinstance(it, (str, bytes, list, tuple)) and it else "
    "it + way if isinstance(it, (int, float)) else (object(), len, 'it', {'it'}, 12.25)[way - 2])("
)
_BEHIND = ", %s[%d])"
_WAYS = (1, 2, 3, 4, 5, 6)
# These exceptions end the session of pytest or unittest where a test lets them out.
_ENDS_SESSION = re.compile(r"\b(?:\w*Interrupt|BaseException|BaseExceptionGroup|Exit)\b")
# A value in a decorator may be an argument of these: they take any value.
_TAKES_ANYTHING = frozenset({"approx", "set", "frozenset", "list", "tuple"})
_MOST_ROWS = 8  # a parameter gets at most so many other values
_OPPOSITE_OPERATORS = {"in": "not in", "is": "is not", "<": ">=", ">": "<=", "==": "!="}
_OPPOSITE_OPERATORS |= {right: left for left, right in _OPPOSITE_OPERATORS.items()}
_OPERATOR = re.compile(r"[\s)]*(?P<operator>[a-z<>=!]+(?:\s+[a-z]+)?)[\s(]*")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edits = Sequence[TextEdit]


class Kind(IntEnum):
    """Says what is exchanged. A lower number says more about a session that such a test passes in."""

    value = 1  # a literal is changed in place
    exception = 2
    foreign_object = 3  # the expectation is only known when the test runs, and becomes something else then
    negation = 4
    ending = 5  # nothing can be exchanged: the test fails at its end


@dataclass(frozen=True, slots=True)
class Expectations:
    """Holds what a test may expect in one place: its `right` expectation, and several others in any order.

    Nobody can tell by their looks which one is the test's own, as far as that is possible.
    """

    others: Sequence[Edits]
    right: Edits = ()


@dataclass(frozen=True, slots=True)
class TwinSite:
    """Holds a place in a test. Each call of `draw` may draw other values."""

    kind: Kind
    draw: Callable[[random.Random], Expectations]
    is_inside: bool = False  # a context manager of the test is open where this site fails


class SiteFinder:
    """Finds the sites of the tests of one file."""

    def __init__(self, source: SourceText) -> None:
        self.source = source

    def sites_of(self, test: Function) -> list[TwinSite]:
        """Returns every site of a test, in the order of the source."""
        guarded = _guarded_nodes(test)
        sites = [
            replace(site, is_inside=id(node) in guarded)
            for node in _own_nodes(test)
            for site in self._sites_at(node, test)
        ]
        return [*sites, self._site_at_end(test)]

    def _site_at_end(self, test: Function) -> TwinSite:
        """Returns a site that makes the test fail at its end.

        A test that compares nothing itself (a helper does, or a snapshot) can at least be made to fail.
        """
        end = self.source.span(test.body[-1])[1]
        is_one_line = test.body[0].lineno == test.lineno
        separator = "; " if is_one_line else "\n" + " " * test.body[0].col_offset
        failing = TextEdit(end, end, f"{separator}assert not [{test.name!r}]")
        return TwinSite(Kind.ending, lambda _: Expectations([[failing]]))

    def _sites_at(self, node: ast.AST, test: Function) -> Iterator[TwinSite]:
        if isinstance(node, ast.Assert):
            yield from self._sites_of_condition(node.test, test)
        elif isinstance(node, ast.Call):
            yield from self._sites_of_call(node, test)

    def _sites_of_condition(self, condition: ast.expr, test: Function) -> Iterator[TwinSite]:
        if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
            # One wrong part makes the whole wrong. The first part is always evaluated, the others may not be.
            yield from self._sites_of_condition(condition.values[0], test)
            return
        if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
            operator = condition.ops[0]
            right = condition.comparators[0]
            if isinstance(operator, ast.Eq) or (isinstance(operator, ast.Is) and not _is_singleton(right)):
                yield from self._sites_of_pair(condition.left, right, test)
            elif isinstance(operator, ast.In) and is_literal(condition.left):
                yield from self._sites_of_literal(condition.left)
        yield TwinSite(Kind.negation, lambda _: Expectations([[self._negated(condition)]]))

    def _negated(self, condition: ast.expr) -> TextEdit:
        """Returns the change to the opposite, written as people write it wherever that is short."""
        source = self.source
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            return source.replace(condition, f"({source.text_of(condition.operand)})")
        if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
            start, end = source.span(condition.left)[1], source.span(condition.comparators[0])[0]
            match = _OPERATOR.fullmatch(source.data[start:end].decode("utf-8"))
            opposite = _OPPOSITE_OPERATORS.get(" ".join(match["operator"].split())) if match else None
            if match and opposite:
                return TextEdit(start + match.start("operator"), start + match.end("operator"), opposite)
        text = source.text_of(condition)
        is_short = isinstance(condition, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
        return source.replace(condition, f"not {text}" if is_short else f"not ({text})")

    def _sites_of_call(self, call: ast.Call, test: Function) -> Iterator[TwinSite]:
        name = _called_name(call)
        if name in EXPECTING_ERRORS:
            if call.args:
                yield from self._sites_of_exception(call.args[0])
            for keyword in call.keywords:
                if keyword.arg == "match":
                    yield from self._sites_of_literal(keyword.value)
            return
        if name in EXPECTATIONS:
            for argument in _expected_arguments(call, EXPECTATIONS[name]):
                yield from self._sites_of_literal(argument)
        elif len(call.args) >= 2 and (name in COMPARED or (name not in OPPOSITES and OWN_ASSERTION.match(name))):
            yield from self._sites_of_pair(call.args[0], call.args[1], test)
        opposite = OPPOSITES.get(name)
        if opposite is not None:
            yield TwinSite(Kind.negation, lambda _: Expectations([[self._renamed(call, opposite)]]))

    def _renamed(self, call: ast.Call, name: str) -> TextEdit:
        if isinstance(call.func, ast.Attribute):
            return self.source.replace(call.func, f"{self.source.text_of(call.func.value)}.{name}")
        return self.source.replace(call.func, name)

    def _sites_of_exception(self, expected: ast.expr) -> Iterator[TwinSite]:
        text = self.source.text_of(expected)
        if _ENDS_SESSION.search(text):
            return
        others = unrelated_exceptions(text)
        yield TwinSite(
            Kind.exception,
            lambda rng: Expectations(
                [[self.source.replace(expected, other)] for other in rng.sample(others, k=len(others))]
            ),
        )

    def _sites_of_pair(self, left: ast.expr, right: ast.expr, test: Function) -> Iterator[TwinSite]:
        """Yields the sites of two sides that have to be equal. The side that is written out is the expectation."""
        expectation = left if is_literal(left) and not is_literal(right) else right
        yield from self._sites_of_expectation(expectation, test)
        yield TwinSite(Kind.foreign_object, lambda rng: self._ways_of(expectation, rng))

    def _ways_of(self, expectation: ast.expr, rng: random.Random) -> Expectations:
        """Returns an expectation in several ways that look alike, among them the one in which it stays what it is."""
        start, end = self.source.span(expectation)
        ways = tuple(rng.sample(_WAYS, k=len(_WAYS)))
        edits = {
            way: [TextEdit(start, start, _BEFORE), TextEdit(end, end, _BEHIND % (ways, place))]
            for place, way in enumerate(ways)
        }
        return Expectations(right=edits.pop(1), others=list(edits.values()))

    def _sites_of_expectation(self, expectation: ast.expr, test: Function) -> Iterator[TwinSite]:
        if isinstance(expectation, ast.Name):
            yield from self._sites_of_name(expectation.id, test)
        elif not isinstance(expectation, ast.Call) or _only_wraps(expectation):
            yield from self._sites_of_literal(expectation)

    def _sites_of_literal(self, expectation: ast.expr) -> Iterator[TwinSite]:
        """Yields a site for each constant in an expectation, also where it is an argument: `approx(3)`, `Point(1, 2)`.

        An empty list, tuple or dictionary gets an element.
        """
        for constant in changeable_constants(expectation):
            yield self._site_of_constant(constant)
        filled = _fill_collection(expectation)
        if filled:
            yield TwinSite(Kind.value, lambda _: Expectations([[self.source.replace(expectation, filled)]]))

    def _site_of_constant(self, constant: ast.Constant) -> TwinSite:
        return TwinSite(Kind.value, lambda rng: Expectations([[edit] for edit in self._other_constants(constant, rng)]))

    def _other_constants(self, constant: ast.Constant, rng: random.Random) -> list[TextEdit]:
        texts = other_literals(self.source.text_of(constant), rng)
        return [self.source.replace(constant, text) for text in texts]

    def _sites_of_name(self, name: str, test: Function) -> Iterator[TwinSite]:
        """Yields the sites where a variable gets the expected literal: an assignment, or the test's parameters."""
        assigned = _assigned_literal(name, test)
        if assigned is not None:
            yield from self._sites_of_literal(assigned)
            return
        rows = _parameter_values(name, test)
        constants = [changeable_constants(value) for value in rows if _is_valid_for_any_value(value)]
        if rows and len(constants) == len(rows) and all(constants):
            yield TwinSite(Kind.value, lambda rng: self._other_rows(constants, rng))

    def _other_rows(self, rows: Sequence[Sequence[ast.Constant]], rng: random.Random) -> Expectations:
        """Returns other values of a parameter. Each row is a test of its own, so each has to expect something else."""
        edits = [self._other_constants(rng.choice(row), rng) for row in rows]
        return Expectations([[of_row[index % len(of_row)] for of_row in edits] for index in range(_MOST_ROWS)])


def _own_nodes(test: Function) -> Iterator[ast.AST]:
    """Yields the nodes of a test's body. Functions and classes inside of it may never run, so they are left out."""
    waiting: list[ast.AST] = list(reversed(test.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        yield node
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _guarded_nodes(test: Function) -> frozenset[int]:
    """Returns the ids of the nodes during which a context manager of the test is open, other than one that expects.

    Not every context manager puts back what it changed when the block fails.
    """
    return frozenset(
        id(node)
        for block in ast.walk(test)
        if isinstance(block, ast.With | ast.AsyncWith) and not all(_expects_error(item) for item in block.items)
        for statement in block.body
        for node in ast.walk(statement)
    )


def _expects_error(item: ast.withitem) -> bool:
    manager = item.context_expr
    return isinstance(manager, ast.Call) and _called_name(manager) in EXPECTING_ERRORS | {"subTest"}


def _is_valid_for_any_value(node: ast.expr) -> bool:
    """Tells whether an expression can be evaluated with any other constants of the same kinds in it."""
    if isinstance(node, ast.Call) and _called_name(node) in _TAKES_ANYTHING and len(node.args) == 1:
        return not node.keywords and is_literal(node.args[0])
    return is_literal(node)


def _is_assertion(name: str) -> bool:
    return name in COMPARED or name in EXPECTATIONS or bool(OWN_ASSERTION.match(name))


def _expected_arguments(call: ast.Call, position: int | None) -> Sequence[ast.expr]:
    if position is None:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    return call.args[position : position + 1]


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _only_wraps(call: ast.Call) -> bool:
    """Tells whether a call's result differs with each of its arguments: an object is made, or a value is wrapped.

    Of other functions nobody knows that: `text.replace("a", "b")` is the same text for most arguments.
    """
    name = _called_name(call)
    return name[:1].isupper() or name in _WRAPPING


def _fill_collection(expectation: ast.expr) -> str:
    """Returns an empty collection's text with an element, or nothing for any other expression."""
    if isinstance(expectation, ast.List) and not expectation.elts:
        return "[0]"
    if isinstance(expectation, ast.Tuple) and not expectation.elts:
        return "(0,)"
    if isinstance(expectation, ast.Dict) and not expectation.keys:
        return "{0: 0}"
    return ""


def _assigned_literal(name: str, test: Function) -> ast.expr | None:
    """Returns the literal that a variable of the test gets, where it gets one only and only comparisons read it."""
    values = [
        node.value
        for node in ast.walk(test)
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
    ]
    stores = [node for node in ast.walk(test) if isinstance(node, ast.Name) and node.id == name]
    written = [node for node in stores if isinstance(node.ctx, ast.Store)]
    if len(values) != 1 or len(written) != 1 or not is_literal(values[0]):
        return None
    # A variable that is an input somewhere may not be changed: right code may differ on other inputs.
    compared = [
        side
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Name) and side.id == name
    ]
    compared += [
        argument
        for node in ast.walk(test)
        if isinstance(node, ast.Call) and _is_assertion(_called_name(node))
        for argument in node.args
        if isinstance(argument, ast.Name) and argument.id == name
    ]
    return values[0] if len(compared) == len(stores) - 1 else None


def _parameter_values(name: str, test: Function) -> Sequence[ast.expr]:
    """Returns what `pytest.mark.parametrize` gives a parameter, row by row, or nothing if that is not written out."""
    for decorator in test.decorator_list:
        if not isinstance(decorator, ast.Call) or _called_name(decorator) != "parametrize" or len(decorator.args) < 2:
            continue
        names = _parameter_names(decorator.args[0])
        rows = decorator.args[1]
        if name not in names or not isinstance(rows, ast.List | ast.Tuple):
            continue
        cells = [_find_cell(row, names, name) for row in rows.elts]
        values = [cell for cell in cells if cell is not None]
        return values if len(values) == len(cells) else ()
    return ()


def _parameter_names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",")]
    if isinstance(node, ast.List | ast.Tuple):
        return [str(part.value) for part in node.elts if isinstance(part, ast.Constant)]
    return []


def _find_cell(row: ast.expr, names: Sequence[str], name: str) -> ast.expr | None:
    """Returns a row's value of one parameter, or None where the row does not show it."""
    if isinstance(row, ast.Call) and _called_name(row) == "param":
        if any(keyword.arg == "marks" for keyword in row.keywords):
            return None  # it may be skipped, or expected to fail
        values: Sequence[ast.expr] = row.args
    elif len(names) == 1:
        values = [row]
    elif isinstance(row, ast.Tuple | ast.List):
        values = row.elts
    else:
        return None
    return values[names.index(name)] if len(values) == len(names) else None
