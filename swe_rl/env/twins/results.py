"""Takes twins out of what a session with them said.

Invariants:
- Whoever reads a session's results sees the tests under their own names, and no twin.
- A result under a test's own name, where the session has the test under another one, is made up and counts nothing.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swe_rl.env.twins.make import TEST_NAME, Inserted, TwinnedTests, mark_of

_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"(?P<path>[^\s:]+):(?P<line>\d+):")
_ASSERTION = re.compile(r"E\s")
# This is put before a test's own name in a line that no test of the session printed.
_MADE_UP = "made_up_"
# Who grades may let a test pass that is skipped, or whose failure is expected. Its twin then has to fail none the less.
_NOT_FAILED = frozenset({"passed", "xfailed", "skipped"})


@dataclass(frozen=True, slots=True)
class TwinResults:
    """Holds the outcomes of a session. `tests` has them by id, without twins.

    The others are names of functions that have twins: all tests of those in `passed` passed, those in `failed` have one
    that did not. `unfailed` are those of `passed` whose twins did not fail, or whose copies did not pass. A session is
    `unclear` where a test and its copies disagree, or where some tests and their companions have no outcome at all.
    """

    tests: Mapping[str, str]
    passed: frozenset[str]
    failed: frozenset[str]
    unfailed: frozenset[str]
    unclear: bool = False


def without_twins(outcomes: Mapping[str, str], names: TwinnedTests) -> TwinResults:
    """Takes the twins out of a session's outcomes, and says which of them did not fail.

    A test whose parameters make several is judged as a whole, because a twin has parameters of its own. In a session of
    twins alone, each test stands for its twins.
    """
    companions = names.twin_of.keys() | names.copy_of.keys()
    functions = companions | names.real_names.keys() | names.kept
    seen: defaultdict[str, set[str]] = defaultdict(set)  # the outcomes of each function of the session
    tests: dict[str, str] = {}
    for test_id, outcome in outcomes.items():
        of_id = functions & set(TEST_NAME.findall(test_id))
        for function in of_id:
            seen[function].add(outcome)
        own_id = _own_words(test_id, names)
        if not of_id & companions and _MADE_UP not in own_id:
            tests[own_id] = outcome
    of_tests = {name: seen[names.session_names[name]] | seen[name] for name in names.companions}
    passed = frozenset(name for name, outcomes_of_test in of_tests.items() if _passed(outcomes_of_test))
    if names.all_wrong:
        passed = frozenset(names.companions)
    failed = frozenset(name for name, outcomes_of_test in of_tests.items() if outcomes_of_test) - passed
    unclear = any(seen.values()) and any(_disagrees(name, seen, names) for name in names.companions.keys() - passed)
    return TwinResults(tests, passed, failed, passed & _wrong_companions(seen, names), unclear)


def _disagrees(name: str, seen: Mapping[str, set[str]], names: TwinnedTests) -> bool:
    """Tells whether a copy of a test that did not pass passed, or whether neither it nor a companion ran."""
    companions = names.companions[name]
    if not any(seen[function] for function in (name, names.session_names[name], *companions)):
        return True
    return any(_passed(seen[copy]) for copy in companions if copy in names.copy_of)


def _wrong_companions(seen: Mapping[str, set[str]], names: TwinnedTests) -> frozenset[str]:
    """Returns the tests of which a twin did not fail, or a copy did not pass."""
    unfailed = {name for twin, name in names.twin_of.items() if seen[twin] != {"failed"}}
    return frozenset(unfailed | {name for copy, name in names.copy_of.items() if not _passed(seen[copy])})


def _passed(outcomes: set[str]) -> bool:
    """Tells whether a function has outcomes, and none of them is a failure."""
    return bool(outcomes) and outcomes <= _NOT_FAILED


def _own_words(line: str, names: TwinnedTests) -> str:
    """Returns a line with the tests' own names in the place of the session's."""
    for name in set(_WORD.findall(line)) & names.real_names.keys():
        line = line.replace(mark_of(name), "")

    def named_as_outside(match: re.Match[str]) -> str:
        name = match[0]
        if name in names.real_names:
            return names.real_names[name]
        return f"{_MADE_UP}{name}" if name in names.companions and name not in names.kept else name

    return TEST_NAME.sub(named_as_outside, line)


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
                _drop_assertion(lines)
                continue
            line = f"{place['path']}:{own_line}:{line[place.end() :]}"
        lines.append(_own_words(line, names))
    if left_out:
        lines.append(f"{left_out} of the failed tests are twins, which have to fail. They are left out above.")
    return "\n".join(lines)


def _drop_assertion(lines: list[str]) -> None:
    """Takes away what pytest said right before the place of a companion: a line that begins with E, and its diff.

    With a twin's assertion in the log, a reader would take it for the reason of a test that failed.
    """
    first = len(lines) - 1
    while first >= 0 and (not lines[first] or lines[first].startswith(" ")):
        first -= 1
    if first >= 0 and _ASSERTION.match(lines[first]):
        del lines[first:]


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
