"""Puts twins into a sandbox before a test session. `results.py` takes them out of its results.

Invariants:
- Twins are made from the files that the grader put into the sandbox, after everything else is there and before any
  tested code runs.
- Code that guesses which functions have to pass is paid at most once in `_GUESSES` times.
"""

import ast
import random
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import comb

from swe_rl.env.twins.make import TEST_NAME, TwinnedTests, add_twins, names_referred_to, numbers_of_values, tests_of
from swe_rl.sandbox.sandbox import Sandbox, read_texts

# A policy learns what pays now and then, so a guess has to pay less often than an honest attempt at a hard instance.
_GUESSES = 50


def draw_seed() -> str:
    """Returns a secret that decides about twins."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class TwinDraw:
    """Says which twins a grading's sessions have.

    The secret `seed` decides about them, and about which of the PASS_TO_PASS tests have any. With `is_whole` all that
    count have, and twins stand before their tests, where they disturb most. Tests of the names in `weak` have none, and
    with `only` no others but these have any.
    """

    seed: str
    weak: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    is_whole: bool = False

    @classmethod
    def none(cls) -> "TwinDraw":
        """Returns the draw with which no test has a twin."""
        return cls(draw_seed(), only=frozenset())

    @property
    def is_none(self) -> bool:
        """Tells whether no test has a twin."""
        return self.only is not None and not self.only


@dataclass(frozen=True, slots=True)
class Counted:
    """Holds the ids that a row names.

    `max_sampled` is the number of PASS_TO_PASS tests that get twins, as `sample` decides; with None all get them. None
    of the names in `weak` is among these tests. With `only` no others but these get any.
    """

    fail_to_pass: Collection[str] = ()
    pass_to_pass: Collection[str] = ()
    max_sampled: int | None = None
    sample: str = ""
    weak: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    companions_first: bool = False
    by_docstring: bool = False  # the runner calls a test by its docstring's first line


async def put_twins(
    sandbox: Sandbox,
    paths: Iterable[str],
    rng: random.Random,
    weak: frozenset[str],
    counted: Counted = Counted(),  # noqa: B008 - it is frozen
    all_wrong: bool = False,
) -> TwinnedTests:
    """Gives the tests of files in a sandbox their twins, and returns the names. Raises SandboxError.

    `paths` are relative to the working folder. A file that is not there, or is no text, stays as it is. `weak` are
    names of tests that get no twin. With `all_wrong` the tests themselves become twins as well.
    """
    texts = await read_texts(sandbox, paths)
    names = TwinnedTests(
        weak=weak,
        wanted=wanted_twins(texts.values(), counted),
        all_wrong=all_wrong,
        referred_to=frozenset().union(*(_referred_to(text) for text in texts.values())),
        companions_first=counted.companions_first,
        mark_docstrings=counted.by_docstring,
    )
    for path, text in texts.items():
        twinned = add_twins(text, rng, names, path)
        if twinned != text:
            await sandbox.write_file(path, twinned.encode("utf-8"))
    return names


def wanted_twins(texts: Iterable[str], counted: Counted) -> dict[str, int]:
    """Returns how many companions each test gets, by its name: the fewer FAIL_TO_PASS tests, the more each of them."""
    descriptions: dict[str, set[str]] = {}
    for text in texts:
        for name, description in _described_tests(text):
            descriptions.setdefault(name, set()).add(description)
    to_pass = _named_in(counted.fail_to_pass, descriptions)
    if not counted.fail_to_pass and not counted.pass_to_pass:
        to_pass = set(descriptions) - counted.weak  # each test of these files has to pass
    others = _named_in(counted.pass_to_pass, descriptions) - to_pass - counted.weak
    if not _all_are_named(counted, descriptions):
        others = (
            set(descriptions) - to_pass - counted.weak
        )  # the row names whole files, no tests, or tests in a way of its own
    rng = random.Random(counted.sample)
    limit = len(descriptions) if counted.max_sampled is None else counted.max_sampled
    first = rng.sample(sorted(to_pass), k=min(len(to_pass), 2 * limit))
    sampled = rng.sample(sorted(others), k=min(len(others), limit))
    wanted = {**dict.fromkeys(sampled, 1), **dict.fromkeys(first, _companions_of_each(len(first)))}
    return {name: number for name, number in wanted.items() if counted.only is None or name in counted.only}


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


def _referred_to(text: str) -> frozenset[str]:
    """Returns the names of tests that a file reads."""
    try:
        return names_referred_to(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()


def _named_in(ids: Collection[str], descriptions: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the names of the tests that ids mean: by a word in them, or by what the test says of itself."""
    words = {word for test_id in ids for word in TEST_NAME.findall(test_id)}
    lines = set(ids)
    return {name for name, said in descriptions.items() if name in words or not lines.isdisjoint(said)}


def _all_are_named(counted: Counted, descriptions: Mapping[str, Collection[str]]) -> bool:
    """Tells whether each FAIL_TO_PASS id means a function, and there is one."""
    known = {*descriptions, *(line for said in descriptions.values() for line in said)}
    return bool(counted.fail_to_pass) and all(
        test_id in known or not known.isdisjoint(TEST_NAME.findall(test_id)) for test_id in counted.fail_to_pass
    )
