"""Gives each test of a Python file twins: the same calls with another expectation.

A session that runs both can be trusted to tell right from wrong only if the tests pass and their twins fail. Whatever
makes wrong code pass (a replaced `pytest.raises`, an exchanged exit code, an object that equals everything) makes a
twin pass as well. Code could still guess which function is the test. So copies of the test stand beside the twins,
which have to pass as the test does: then a guess has to be right about each function. Code could also read what all
these functions expect. So they differ in one place alone, where each of a few values is expected equally often. Code
could still choose the value that fits best. So there are sessions in which all functions are twins: what it chooses
there gives it away (`all_wrong`).

Invariants:
- Tests and twins get names of one form, in an order that is drawn anew for each session, so that tested code cannot
  tell which is which. A test that reads its own name keeps it, and so does one that the files of tests name elsewhere.
- A name stands for all tests that have it: a method that overrides another one still does.
- The file is otherwise as it was, character for character. Only where a runner calls tests by their docstrings, these
  say which test they belong to, and an expectation that is not written out stands in a call that its twins have too.
- A test that is skipped or expected to fail gets no twin, and neither does one without an expectation of its own.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swe_rl.env.twins.sites import Edits, Expectations, Function, Kind, SiteFinder, TwinSite
from swe_rl.env.twins.source import SourceText, TextEdit

# This finds a test's name in an id or a line of a log, but no part of a path or of a module's name.
TEST_NAME = re.compile(r"(?<![\w/])test\w*(?![\w/.])")
# These words follow a test's name. They say nothing, and each is as likely behind a test as behind a twin.
_WORDS = (
    "again", "alone", "also", "any", "basic", "both", "case", "common", "default", "each", "early", "empty", "even",
    "exact", "extra", "first", "full", "given", "large", "last", "late", "like", "long", "main", "many", "mixed",
    "more", "next", "odd", "once", "only", "other", "plain", "same", "short", "simple", "single", "small", "some",
    "then", "twice", "usual", "value", "whole",
)  # fmt: skip
# A test with one of these words in a decorator gets no twin.
_LEFT_OUT_MARKS = ("skip", "xfail", "expectedfailure", "fixture")
_MOST_VALUES = 6  # a test and its companions expect at most so many different values
# Hypothesis takes long to find the smallest values that fail, so one twin is enough.
_REPEATS_ITSELF = "given("
# A test that asks for one of these depends on its own name.
_NAME_READERS = ("__name__", "_testMethodName", "nodeid", "request", "snapshot", "regression", ".id()")
# This finds the first line with words of a docstring: one string, without a line that goes on in the next.
_FIRST_DOC_LINE = re.compile(r"""[rRuU]?(?:'''|\"{3}|'|")\s*(?P<line>[^\n\\]*?)[ \t]*(?=\n|'''|\"{3}|['"]\Z)""")


@dataclass(frozen=True, slots=True)
class Inserted:
    """Says which lines of a file with twins its text did not have. The first line of a file is number 1."""

    first_line: int
    num_lines: int


@dataclass(slots=True)
class TwinnedTests:
    """Holds the names of functions in one session, of all files that one `random.Random` made twins for."""

    real_names: dict[str, str] = field(default_factory=dict)  # maps the name in the session to the test's own
    twin_of: dict[str, str] = field(default_factory=dict)  # maps a twin's name to its test's own
    expectation_of: dict[str, int] = field(default_factory=dict)  # twins of one test and number expect the same
    kept: set[str] = field(default_factory=set)  # functions have these tests' own names in the session too
    without: list[str] = field(default_factory=list)  # these tests have no twin
    inserted: dict[str, list[Inserted]] = field(default_factory=dict)  # the key is the path of the file
    weak: frozenset[str] = frozenset()  # these get no twin: their twins do not fail on right code either
    wanted: Mapping[str, int] | None = None  # says how many companions a test gets; with None each gets one, a twin
    all_wrong: bool = False  # each function is a twin, also the one that has the test's place
    referred_to: frozenset[str] = frozenset()  # the files of tests name these outside of their definitions
    companions_first: bool = False  # they stand before their test, where they disturb it most
    mark_docstrings: bool = False  # the runner calls a test by its docstring's first line
    session_names: dict[str, str] = field(default_factory=dict)  # maps a test's own name to its name in the session
    companions: dict[str, list[str]] = field(default_factory=dict)  # twins and copies; the key is a test's own name
    copy_of: dict[str, str] = field(default_factory=dict)  # maps a copy's name to its test's own
    taken: set[str] = field(default_factory=set)  # these names were drawn

    def num_companions(self, name: str) -> int:
        """Returns how many functions a test of this name gets beside it."""
        if name in self.weak:
            return 0
        return 1 if self.wanted is None else self.wanted.get(name, 0)


def add_twins(text: str, rng: random.Random, names: TwinnedTests, path: str = "") -> str:
    """Returns a test file with twins, and notes their names and places in `names`.

    `path` is what pytest calls the file. A file that does not parse stays as it is.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return text
    source = SourceText(text)
    finder = SiteFinder(source)
    names.referred_to |= names_referred_to(tree)
    tests = list(tests_of(tree.body))
    drawn = [_draw_expectations(_best_sites(test, finder, names), rng) for test in tests]
    for test, expectations in zip(tests, drawn, strict=True):
        if expectations.others:
            _draw_names(test, len(expectations.others), rng, names)
    edits = [
        edit
        for test, expectations in zip(tests, drawn, strict=True)
        for edit in _edits_of(test, expectations, source, rng, names)
    ]
    names.inserted[path] = _inserted_lines(edits, source)
    return source.changed(edits)


def poison_test(text: str, name: str, rng: random.Random) -> str:
    """Returns a test file in which each test of a name expects something else, in place.

    Returns the text as it is where no test of that name can.
    """
    try:
        tests = [test for test in tests_of(ast.parse(text).body) if test.name == name]
    except (SyntaxError, ValueError, RecursionError):
        return text
    source = SourceText(text)
    sites = [_best_sites(test, SiteFinder(source), TwinnedTests()) for test in tests]
    return source.changed(edit for of_test in sites if of_test for edit in rng.choice(of_test).draw(rng).others[0])


def names_referred_to(tree: ast.AST) -> frozenset[str]:
    """Returns the names of tests that a file reads: it calls them, imports them, or writes them out."""
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.add(node.id)
        elif isinstance(node, ast.Attribute):
            read.add(node.attr)
        elif isinstance(node, ast.alias):
            read.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            read.add(node.value)
    return frozenset(name for name in read if name.startswith("test"))


def _inserted_lines(edits: Sequence[TextEdit], source: SourceText) -> list[Inserted]:
    """Returns where the twins stand in the file after the edits."""
    places: list[Inserted] = []
    shift = 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        num_lines = edit.text.count("\n")
        if num_lines:
            # A twin behind its test begins with the end of the test's last line.
            first_line = source.lines_before(edit.start) + 1 + edit.text.startswith("\n") + shift
            places.append(Inserted(first_line, num_lines))
            shift += num_lines
    return places


def tests_of(body: Sequence[ast.stmt]) -> Iterator[Function]:
    """Yields the test functions of a module and of its classes, also below conditions."""
    for node in body:
        if isinstance(node, Function):
            if node.name.startswith("test"):
                yield node
        elif isinstance(node, ast.ClassDef):
            yield from tests_of(node.body)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "handlers", "orelse", "finalbody"):
                for child in getattr(node, part, ()):
                    yield from tests_of(child.body if isinstance(child, ast.ExceptHandler) else [child])


def _best_sites(test: Function, finder: SiteFinder, names: TwinnedTests) -> list[TwinSite]:
    """Returns the sites that say most about a session, and none for a test that gets no twin."""
    if not names.num_companions(test.name) or _is_left_out(test):
        return []
    if names.mark_docstrings and ast.get_docstring(test) and _end_of_doc_line(test, finder.source) is None:
        return []
    sites = finder.sites_of(test)
    best: Kind = min((site.kind for site in sites), default=Kind.value)
    best_sites = [site for site in sites if site.kind == best]
    # What a failure leaves behind within a context manager may disturb other tests.
    return [site for site in best_sites if not site.is_inside] or best_sites


def _is_left_out(test: Function) -> bool:
    """Tells whether a decorator says that the test is skipped, expected to fail, or no test."""
    marks = [ast.unparse(decorator).lower() for decorator in test.decorator_list]
    return any(word in mark for mark in marks for word in _LEFT_OUT_MARKS)


def _draw_expectations(sites: Sequence[TwinSite], rng: random.Random) -> Expectations:
    """Returns what a test and its twins expect in one place. Without a place there are no other expectations."""
    return rng.choice(sites).draw(rng) if sites else Expectations(())


def numbers_of_values(num_functions: int) -> list[int]:
    """Returns how many values a test and its companions, an even number of functions, may expect equally often."""
    return [values for values in range(2, _MOST_VALUES + 1) if num_functions % values == 0]


def _draw_names(test: Function, num_others: int, rng: random.Random, names: TwinnedTests) -> None:
    """Gives all tests of one name their names in the session, and those of their companions.

    The test and its copies are as many as the twins that expect one other value. There are `num_others` of these.
    """
    if test.name in names.session_names:
        return
    num_functions = names.num_companions(test.name) + 1
    if any(_REPEATS_ITSELF in ast.unparse(decorator) for decorator in test.decorator_list):
        num_functions = 2
    num_known = num_others if names.all_wrong else num_others + 1
    num_values = max(values for values in (1, *numbers_of_values(num_functions)) if values <= num_known)
    num_right = 1 if _reads_its_name(ast.unparse(test)) else num_functions // num_values
    if names.all_wrong:
        num_right = 0
    drawn = [_free_name(test.name, rng, names) for _ in range(num_functions)]
    names.session_names[test.name] = drawn[0]
    names.real_names[drawn[0]] = test.name
    names.copy_of.update(dict.fromkeys(drawn[1:num_right], test.name))
    names.twin_of.update(dict.fromkeys(drawn[max(num_right, 1) :], test.name))
    num_wrong = num_values if names.all_wrong else num_values - 1
    names.expectation_of.update({name: index % num_wrong for index, name in enumerate(drawn[num_right:])})
    names.companions[test.name] = drawn[1:]
    rng.shuffle(names.companions[test.name])


def _reads_its_name(text: str) -> bool:
    """Tells whether a test depends on its own name, so that its copies under other names might fail."""
    return any(reader in text for reader in _NAME_READERS)


def _free_name(name: str, rng: random.Random, names: TwinnedTests) -> str:
    """Returns the test's name with words behind it that no other function has."""
    while True:
        words = "_".join(rng.sample(_WORDS, k=2))
        candidate = f"{name}_{words}"
        if candidate not in names.taken:
            names.taken.add(candidate)
            return candidate


def _edits_of(
    test: Function,
    expectations: Expectations,
    source: SourceText,
    rng: random.Random,
    names: TwinnedTests,
) -> Iterator[TextEdit]:
    """Yields the edits that put a test's companions around the test, and give the test its name in the session."""
    if not expectations.others and names.num_companions(test.name):
        names.without.append(test.name)
    session_name = names.session_names.get(test.name, test.name)
    if _reads_its_name(source.text_of(test)) or test.name in names.referred_to:
        session_name = test.name
    if session_name == test.name:
        names.kept.add(test.name)
    else:
        yield from _rename_edits(test, session_name, source, names)
    if not expectations.others:
        return
    if names.all_wrong:
        names.twin_of[session_name] = test.name
    yield from _expectation_of(session_name, expectations, names)
    start = source.line_start(min([test.lineno, *(decorator.lineno for decorator in test.decorator_list)]))
    end = source.line_end(test)
    companions: list[str] = []
    for name in names.companions[test.name]:
        edits = [*_expectation_of(name, expectations, names), *_rename_edits(test, name, source, names)]
        companions.append(source.changed(edits, start, end))
    num_before = len(companions) if names.companions_first else rng.randint(0, len(companions))
    if num_before:
        yield TextEdit(start, start, "".join(f"{companion}\n\n" for companion in companions[:num_before]))
    if num_before < len(companions):
        yield TextEdit(end, end, "".join(f"\n\n{companion}" for companion in companions[num_before:]) + "\n")


def _expectation_of(function: str, expectations: Expectations, names: TwinnedTests) -> Edits:
    """Returns the edits that let a function expect what it is to expect."""
    if function not in names.twin_of:
        return expectations.right
    return expectations.others[names.expectation_of.get(function, 0) % len(expectations.others)]


def _rename_edits(test: Function, name: str, source: SourceText, names: TwinnedTests) -> list[TextEdit]:
    """Returns the edits that give a function another name, also in its docstring where the runner shows that."""
    edits = [TextEdit(*_place_of_name(test, source), name)]
    end = _end_of_doc_line(test, source) if names.mark_docstrings else None
    return edits if end is None else [*edits, TextEdit(end, end, mark_of(name))]


def mark_of(name: str) -> str:
    """Returns what stands behind the first line of a docstring, so that a log tells a test from its twins."""
    return f" [{name}]"


def _end_of_doc_line(test: Function, source: SourceText) -> int | None:
    """Returns where a docstring's first line with words ends, in bytes, or None where it has no such line."""
    first = test.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    match = _FIRST_DOC_LINE.match(source.text_of(first.value)) if isinstance(first.value.value, str) else None
    if match is None or not match["line"]:
        return None
    return source.span(first.value)[0] + len(match.string[: match.end("line")].encode("utf-8"))


def _place_of_name(test: Function, source: SourceText) -> tuple[int, int]:
    """Returns where a function's name stands, in bytes: behind `def`, which the tree does not say."""
    line = source.line_start(test.lineno) + test.col_offset
    start = source.data.index(test.name.encode("utf-8"), line + len("def"))
    return start, start + len(test.name.encode("utf-8"))
