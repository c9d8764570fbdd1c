"""Looks again at a patch that would be paid.

The first look is at sessions in which the tests have to fail: can these tests still tell right from wrong? Where twins
can stand beside the tests, they say so in the first session. Elsewhere a session says only whether all tests passed. So
the tests run several times more, with right expectations or with wrong ones, in an order that nobody outside can know.
Tests that pass with wrong expectations pass whatever the code does. `twin_trial.py` compares that with the known fix.

The second one is a session without twins. Twins fail, so a session with twins always ends with the status of a failure.
Where a row's tests are several commands (`pytest A && ./check`), that status hides two contradictions: a command after
the twins that was never reached, and a failure whose status a later command replaced. A run without twins shows both. A
single runner needs no such run: each of its failures has a line in the log.

Invariants:
- Code that lets its tests pass at random, without a look at what they expect, is paid at most once in 53 times. Code
  that acts by the clock is paid at most once in 31 times.
- How many sessions there are depends on the time that the known fix takes, not the patch: code may sleep.
"""

import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.evidence import Evidence, Evidences
from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.protocol import Grade, PytestSession
from swe_rl.sandbox.protocol import Workspace

# These lines run no test: the harness's marks, the shell's options, what is printed and kept.
_NO_TEST = re.compile(r"\s*(?:#.*|:|:\s.*|echo\b.*|set\b.*|\w+=\S*|['\">].*)?\s*")
_BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;\n|]")
_EVIDENCES = Evidences()
_MOST_LOOKS = 5  # with so many further sessions in an unknown order, chance passes all of them once in 53 times
_LOOKS_S = 60.0  # further sessions take about so long at most, but there is always one


def runs_several_commands(script: str) -> bool:
    """Tells whether a row's script has more than one command between its marks, quotes not looked at."""
    parts = _BETWEEN_COMMANDS.split(commands_of_tests(script).replace("\\\n", " "))
    return sum(not _NO_TEST.fullmatch(part) for part in parts) > 1


async def confirm_without_twins(
    instance: Instance, workspace: Workspace, grade: Grade, run: Callable[[str | None], Awaitable[Grade]], patch: str
) -> Grade:
    """Returns `grade`, or that of the run without twins where this run does not resolve the instance.

    `run` runs the tests without twins, with a patch or none. Raises GradeError.
    """

    async def other(change: str | None) -> Evidence:
        return Evidence.of(await run(change))

    plain = await _EVIDENCES.judge(instance, workspace, await run(patch), other)
    return grade if plain.resolved else replace(plain, session=grade.session)


def looks_within(session_s: float) -> int:
    """Returns how many further sessions a patch gets, where one with the known fix takes `session_s`."""
    return min(_MOST_LOOKS, max(1, int(_LOOKS_S / max(session_s, 1.0))))


def draw_looks(num_looks: int, rng: random.Random) -> list[bool]:
    """Returns for each further session whether its tests have to fail. At least one has to."""
    drawn = rng.randrange(1, 2**num_looks)
    return [bool(drawn >> index & 1) for index in range(num_looks)]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Runs the tests of one instance anew, each time in a fresh sandbox. Each function raises GradeError.

    `plain` runs them with a patch, or with none. `poisoned` changes what the tests expect as a seed says; it also
    returns the names of what was changed, and "" if nothing was.
    """

    plain: Callable[[str | None], Awaitable[Grade]]
    poisoned: Callable[[str, str], Awaitable[tuple[str, Grade]]]


async def with_more_sessions(
    instance: Instance, workspace: Workspace, grade: Grade, patch: str, sessions: Sessions, seed: str
) -> Grade:
    """Returns `grade` with what further sessions say, or that of a session in which the tests did not pass again.

    `seed` decides about the sessions. The known fix has all those that have to fail and no other; a patch has none
    after the first that did not fail. Raises GradeError.
    """
    if not grade.resolved or not instance.patch.strip():  # without a known fix nothing is convicted
        return grade

    async def other(change: str | None) -> Evidence:
        return Evidence.of(await sessions.plain(change))

    fix_s = await _EVIDENCES.seconds_of_the_fix(instance, workspace, other)
    poisoned = set[str]()
    unfailed = set[str]()
    is_fix = patch == instance.patch
    for number, is_poisoned in enumerate(draw_looks(looks_within(fix_s), random.Random(seed))):
        if not is_poisoned:
            if is_fix:
                continue
            again = await _EVIDENCES.judge(instance, workspace, await sessions.plain(patch), other)
            if not again.resolved:
                return again
            continue
        names, shown = await sessions.poisoned(patch, f"{seed}-{number}")
        if not names:  # nobody knows how to make these tests fail
            break
        poisoned.add(names)
        if shown.resolved:
            unfailed.add(names)
            if not is_fix:
                break
    return replace(grade, session=PytestSession(twinned=frozenset(poisoned), passed_twins=frozenset(unfailed)))
