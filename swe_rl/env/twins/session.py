"""Puts twins into a sandbox before a test session, and takes them out of its results after it.

Invariants:
- Twins are made from the files that the grader put into the sandbox, after everything else is there and before any
  tested code runs.
- Whoever reads a session's results sees the tests under their own names, and no twin.
- A result under a test's own name, where the session has the test under another one, is made up and counts nothing.
- Code that guesses which functions have to pass is paid at most once in `_GUESSES` times.
"""

import ast
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from swe_rl.env.twins.make import (
    Inserted,
    TwinnedTests,
    add_twins,
    mark_of,
    numbers_of_values,
    poison_test,
    tests_of,
)
from swe_rl.sandbox.sandbox import Sandbox, read_texts

_WORD = re.compile(r"\w+")
# This finds a test's name in an id or a line of a log, but no part of a path or of a module's name.
_TEST_NAME = re.compile(r"(?<![\w/])test\w*(?![\w/.])")
_PLACE = re.compile(r"(?P<path>[^\s:]+):(?P<line>\d+):")
# This is put before a test's own name in a line that no test of the session printed.
_MADE_UP = "made_up_"
# A policy learns what pays now and then, so a guess has to pay less often than an honest attempt at a hard instance.
_GUESSES = 50
# Who grades may let a test pass that is skipped, or whose failure is expected. Its twin then has to fail none the less.
_NOT_FAILED = frozenset({"passed", "xfailed", "skipped"})


@dataclass(frozen=True, slots=True)
class TwinResults:
    """Holds the outcomes of a session. `tests` has them by id, without twins.

    The others are names of functions that have twins: all tests of those in `passed` passed, those in `failed` have one
    that did not. `unfailed` are those of `passed` whose twins did not fail, or whose copies did not pass.
    """

    tests: Mapping[str, str]
    passed: frozenset[str]
    failed: frozenset[str]
    unfailed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Counted:
    """Holds the ids that a row names.

    `max_sampled` is the number of PASS_TO_PASS tests that get twins, as `sample` decides; with None all get them.
    """

    fail_to_pass: Collection[str] = ()
    pass_to_pass: Collection[str] = ()
    max_sampled: int | None = None
    sample: str = ""
    by_docstring: bool = False  # the runner calls a test by its docstring's first line


async def put_twins(
    sandbox: Sandbox,
    paths: Iterable[str],
    rng: random.Random,
    weak: frozenset[str],
    counted: Counted = Counted(),  # noqa: B008 - it is frozen
) -> TwinnedTests:
    """Gives the tests of files in a sandbox their twins, and returns the names. Raises SandboxError.

    `paths` are relative to the working folder. A file that is not there, or is no text, stays as it is. `weak` are
    names of tests that get no twin.
    """
    texts = await read_texts(sandbox, paths)
    names = TwinnedTests(weak=weak, wanted=wanted_twins(texts.values(), counted), mark_docstrings=counted.by_docstring)
    for path, text in texts.items():
        twinned = add_twins(text, rng, names, path)
        if twinned != text:
            await sandbox.write_file(path, twinned.encode("utf-8"))
    return names


async def poison_a_test(
    sandbox: Sandbox, paths: Iterable[str], rng: random.Random, weak: frozenset[str], counted: Counted
) -> str:
    """Gives one test in a sandbox another expectation, and returns its name, or nothing where no test can have one.

    A session over these files has to fail. The test is drawn from FAIL_TO_PASS where these ids mean functions.
    """
    texts = await read_texts(sandbox, paths)
    wanted = wanted_twins(texts.values(), replace(counted, pass_to_pass=(), max_sampled=None))
    names = sorted(wanted.keys() - weak)
    rng.shuffle(names)
    for name in names:
        changed = {path: poison_test(text, name, rng) for path, text in texts.items()}
        if changed != texts:
            for path in [path for path in changed if changed[path] != texts[path]]:
                await sandbox.write_file(path, changed[path].encode("utf-8"))
            return name
    return ""


def wanted_twins(texts: Iterable[str], counted: Counted) -> dict[str, int]:
    """Returns how many companions each test gets, by its name: the fewer FAIL_TO_PASS tests, the more each of them."""
    descriptions: dict[str, set[str]] = {}
    for text in texts:
        for name, description in _described_tests(text):
            descriptions.setdefault(name, set()).add(description)
    to_pass = _named_in(counted.fail_to_pass, descriptions)
    others = _named_in(counted.pass_to_pass, descriptions) - to_pass
    if not _all_are_named(counted, descriptions):
        others = set(descriptions) - to_pass  # the row names whole files, no tests, or tests in a way of its own
    rng = random.Random(counted.sample)
    limit = len(descriptions) if counted.max_sampled is None else counted.max_sampled
    first = rng.sample(sorted(to_pass), k=min(len(to_pass), 2 * limit))
    sampled = rng.sample(sorted(others), k=min(len(others), limit))
    return {**dict.fromkeys(sampled, 1), **dict.fromkeys(first, _companions_of_each(len(first)))}


def _companions_of_each(num_tests: int) -> int:
    """Returns how many companions each of some tests needs, so that a guess at all of them is right seldom enough."""
    num_functions = 2
    while num_tests and _fewest_mixtures(num_functions) ** num_tests < _GUESSES:
        num_functions += 2
    return num_functions - 1


def _fewest_mixtures(num_functions: int) -> int:
    """Returns how many mixtures of right and wrong functions a test has at least, whatever its expectation is."""
    return min(comb(num_functions, num_functions // values) for values in numbers_of_values(num_functions))


def _described_tests(text: str) -> list[tuple[str, str]]:
    """Returns a file's tests: the name of each, and its docstring's first line."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [(test.name, (ast.get_docstring(test) or "").split("\n", 1)[0].strip()) for test in tests_of(body)]


def _named_in(ids: Collection[str], descriptions: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the names of the tests that ids mean: by a word in them, or by what the test says of itself."""
    words = {word for test_id in ids for word in _TEST_NAME.findall(test_id)}
    lines = set(ids)
    return {name for name, said in descriptions.items() if name in words or not lines.isdisjoint(said)}


def _all_are_named(counted: Counted, descriptions: Mapping[str, Collection[str]]) -> bool:
    """Tells whether each FAIL_TO_PASS id means a function, and there is one."""
    known = {*descriptions, *(line for said in descriptions.values() for line in said)}
    return bool(counted.fail_to_pass) and all(
        test_id in known or not known.isdisjoint(_TEST_NAME.findall(test_id)) for test_id in counted.fail_to_pass
    )


def without_twins(outcomes: Mapping[str, str], names: TwinnedTests) -> TwinResults:
    """Takes the twins out of a session's outcomes, and says which of them did not fail.

    A test whose parameters make several is judged as a whole, because a twin has parameters of its own.
    """
    tests: dict[str, str] = {}
    of_tests: dict[str, set[str]] = {}
    of_companions: dict[str, set[str]] = {}
    for test_id, outcome in outcomes.items():
        words = set(_TEST_NAME.findall(test_id))
        companions = words & (names.twin_of.keys() | names.copy_of.keys())
        for companion in companions:
            of_companions.setdefault(companion, set()).add(outcome)
        own_id = None if companions else _own_words(test_id, names)
        if own_id is None or _MADE_UP in own_id:
            continue
        tests[own_id] = outcome
        for name in words & (names.real_names.keys() | names.kept):
            own_name = names.real_names.get(name, name)
            if own_name in names.companions:
                of_tests.setdefault(own_name, set()).add(outcome)
    passed = frozenset(name for name, outcomes_of_name in of_tests.items() if _passed(outcomes_of_name))
    unfailed = {name for twin, name in names.twin_of.items() if of_companions.get(twin) != {"failed"}}
    unfailed |= {name for copy, name in names.copy_of.items() if not _passed(of_companions.get(copy))}
    return TwinResults(tests, passed, frozenset(of_tests) - passed, passed & unfailed)


def _passed(outcomes: set[str] | None) -> bool:
    """Tells whether a function has outcomes, and none of them is a failure."""
    return outcomes is not None and bool(outcomes) and outcomes <= _NOT_FAILED


def function_name(test_id: str) -> str:
    """Returns the function's name of `tests/test_a.py::TestB::test_c[1-2]`: `test_c`."""
    return test_id.partition("[")[0].rpartition("::")[2]


def _own_words(line: str, names: TwinnedTests) -> str:
    """Returns a line with the tests' own names in the place of the session's."""
    for name in set(_WORD.findall(line)) & names.real_names.keys():
        line = line.replace(mark_of(name), "")

    def named_as_outside(match: re.Match[str]) -> str:
        name = match[0]
        if name in names.real_names:
            return names.real_names[name]
        return f"{_MADE_UP}{name}" if name in names.companions and name not in names.kept else name

    return _TEST_NAME.sub(named_as_outside, line)


def log_without_twins(log: str, names: TwinnedTests) -> str:
    """Returns a runner's output as a reader expects it: no line about a companion, and tests by their own names."""
    lines: list[str] = []
    left_out = 0
    for line in log.split("\n"):
        words = set(_WORD.findall(line))
        if words & (names.twin_of.keys() | names.copy_of.keys()):
            left_out += line.startswith(("FAILED", "ERROR"))
            continue
        place = _PLACE.match(line)
        if place:
            own_line = own_line_number(int(place["line"]), _inserted_in(place["path"], names))
            if own_line is None:
                continue
            line = f"{place['path']}:{own_line}:{line[place.end() :]}"
        lines.append(_own_words(line, names))
    if left_out:
        lines.append(f"{left_out} of the failed tests are twins, which have to fail. They are left out above.")
    return "\n".join(lines)


def own_line_number(line_number: int, inserted: Sequence[Inserted]) -> int | None:
    """Returns the number that a line of a file with twins has without them, or None for a line of a companion."""
    shift = 0
    for place in inserted:
        if line_number < place.first_line:
            break
        if line_number < place.first_line + place.num_lines:
            return None
        shift += place.num_lines
    return line_number - shift


def _inserted_in(path: str, names: TwinnedTests) -> Sequence[Inserted]:
    """Returns the places of a file's twins. Pytest calls the file by its whole path."""
    for known, inserted in names.inserted.items():
        if path == known or path.endswith(f"/{known}"):
            return inserted
    return ()
