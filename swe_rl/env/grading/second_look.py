"""Looks again at a patch that would be paid: in a further session its tests have to fail.

Twins beside the tests say whether a session can tell right from wrong. But whoever reads all functions of a session can
choose among what they expect, and where no twin can stand beside the tests, the session says nothing of this. So the
tests run once more, and nothing there expects what right code gives. Whatever is chosen there passes a test that has to
fail. `twin_trial.py` compares that with the known fix.

Code that chooses at random, or lets its tests pass at random, is still paid now and then. But it is found out sooner or
later, as is plainer code, and then there is an alert: the next patches get several further sessions.

A patch that was cleared is not looked at each time again (`alert.py`). So a new one can have more sessions.

Invariants:
- Where no twin stands beside the tests, new code that lets its tests pass at random, without a look at what they
  expect, is paid at most once in 16 times, and on alert once in 53 times. New code that acts by the clock is paid at
  most once in 5 times, and on alert once in 31 times.
- The sessions run side by side, so the clock says little, and a right patch waits about as long as for one more.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, PytestSession
from swe_rl.env.grading.alert import ALERT, digest_of, is_looked_at_again

# One of these is drawn for a new patch where no twin stands beside the tests. As many have one poisoned session as have
# three, so whatever the chance is with which code passes, it is paid at most 1/2 to the power of 4 times.
_LOOKS_OF_NEW = (
    (True, False, False),
    (True, True, False),
    (True, False, True),
    (False, True, True),
    (True, True, True),
)
_LOOKS_ON_ALERT = 5  # with so many further sessions in an unknown order, chance passes all of them once in 53 times
_LOOKS_OF_TWINS_ON_ALERT = 3  # beside twins no session has to pass again, so fewer say as much
# What no `---` follows may be a binary file, of which git takes the content that this id has in the repository.
_FILE_VERSIONS = re.compile(r"^index [0-9a-f]+\.\.[0-9a-f]+(?: \d+)?\n(?=--- )", re.MULTILINE)
_HUNK_HEADING = re.compile(r"^(@@ -[\d,]+ \+[\d,]+ @@).*", re.MULTILINE)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Runs the tests of one instance anew, each time in a fresh sandbox. Each function raises GradeError.

    `poisoned` lets all tests expect something else, as a seed says. Its session names those tests as `twinned`, and as
    `passed_twins` those that did not fail. `plain` runs the tests with a patch; it is None where twins stand beside
    them.
    """

    poisoned: Callable[[str, str], Awaitable[Grade]]
    plain: Callable[[str], Awaitable[Grade]] | None = None


def grade_of_poisoned(grade: Grade, names: str) -> Grade:
    """Returns the grade of a session in which the tests of some files, which `names` are, had to fail in place."""
    tests = frozenset({names})
    session = PytestSession(twinned=tests, passed_twins=tests if grade.resolved else frozenset())
    return replace(grade, session=session)


def draw_looks(is_alert: bool, is_cleared: bool, has_plain: bool, rng: random.Random) -> list[bool]:
    """Returns for each further session whether its tests have to fail. At least one has to."""
    if not is_alert:
        if is_cleared or not has_plain:
            return [True]
        return list(rng.choice(_LOOKS_OF_NEW))
    if not has_plain:
        return [True] * _LOOKS_OF_TWINS_ON_ALERT
    drawn = rng.randrange(1, 2**_LOOKS_ON_ALERT)
    return [bool(drawn >> index & 1) for index in range(_LOOKS_ON_ALERT)]


def is_change_of_fix(instance: Instance, patch: str) -> bool:
    """Tells whether a patch changes the same lines in the same way as the known fix.

    Ids of versions of text files, and what git adds to the heading of a hunk, may differ: `git apply` does not heed
    them. Lines of files have a sign before them, and all others none.
    """
    return _changes_of(patch) == _changes_of(instance.patch)


def _changes_of(patch: str) -> str:
    """Returns the lines of a patch that say what it changes."""
    return _HUNK_HEADING.sub(r"\1", _FILE_VERSIONS.sub("", patch.rstrip("\n")))


async def with_more_sessions(
    instance: Instance, grade: Grade, patch: str, sessions: Sessions, seed: str, is_alert: bool
) -> Grade:
    """Returns `grade` with what further sessions say, or that of a session that shows that it is not to be paid.

    There are none where they would decide nothing, and mostly none of a patch that was cleared before. The change of
    the known fix is right whoever makes it. The fix itself, as the row has it, does have them: it shows which tests can
    fail. Raises GradeError.
    """
    if not grade.resolved or grade.session.passed_twins or not instance.patch.strip():
        return grade  # it is not paid anyhow, or nothing could be convicted without a known fix
    if is_change_of_fix(instance, patch) and patch != instance.patch:
        return grade
    has_plain = sessions.plain is not None
    rng = random.Random(seed)
    if is_alert or ALERT.is_on:
        return await _look(instance, grade, patch, sessions, seed, draw_looks(True, False, has_plain, rng))
    digest = digest_of(instance, patch)
    async with ALERT.cleared.looking_at(digest):
        twinned = ALERT.cleared.trust(digest)
        if twinned is not None and not is_looked_at_again(seed):
            return replace(grade, session=replace(grade.session, twinned=grade.session.twinned or twinned))
        looks = draw_looks(ALERT.is_on, twinned is not None, has_plain, rng)
        shown = await _look(instance, grade, patch, sessions, seed, looks)
        if not shown.resolved or shown.session.passed_twins:
            ALERT.cleared.forget(digest)
        elif not ALERT.is_on:
            ALERT.cleared.clear(digest, shown.session.twinned)
    return shown


async def _look(
    instance: Instance, grade: Grade, patch: str, sessions: Sessions, seed: str, looks: Sequence[bool]
) -> Grade:
    """Returns `grade` with what further sessions say. They run side by side, and `looks` says which have to fail.

    The known fix has those alone that have to fail. Where a session came to no verdict, the others convict all the
    same. Otherwise its error is raised. Raises GradeError.
    """
    plain = sessions.plain

    async def look(number: int, is_poisoned: bool) -> Grade:
        if is_poisoned or plain is None:
            return await sessions.poisoned(patch, f"{seed}-{number}")
        return grade if patch == instance.patch else await plain(patch)

    seen = await _side_by_side([look(number, is_poisoned) for number, is_poisoned in enumerate(looks)])
    errors = [shown for shown in seen if isinstance(shown, BaseException)]
    if not errors:
        return _grade_of_looks(grade, [shown for shown in seen if isinstance(shown, Grade)], looks)
    for number, shown in enumerate(seen):
        if (
            isinstance(shown, Grade)
            and looks[number]
            and shown.session.passed_twins
            and await _fails_with_fix(instance, sessions, f"{seed}-{number}", shown.session.passed_twins)
        ):
            ALERT.sound()
            return replace(grade.worthless("twin_passed"), session=PytestSession())
    raise errors[0]


async def _fails_with_fix(instance: Instance, sessions: Sessions, look_seed: str, passed_twins: frozenset[str]) -> bool:
    """Tells whether one of the tests that passed in a session fails there with the known fix. Raises GradeError."""
    fix = await sessions.poisoned(instance.patch, look_seed)
    return bool(passed_twins & (fix.session.twinned - fix.session.passed_twins))


def _grade_of_looks(grade: Grade, seen: Sequence[Grade], looks: Sequence[bool]) -> Grade:
    """Returns `grade` with what the further sessions in `seen` say.

    A session that failed or broke off hides nothing that another one shows: `passed_twins` are those of all sessions.
    """
    beside_twins = grade.session.twinned
    poisoned = [shown.session for shown, is_poisoned in zip(seen, looks, strict=True) if is_poisoned]
    twinned = beside_twins or frozenset().union(*(session.twinned for session in poisoned))
    unfailed = frozenset().union(*(session.passed_twins for session in poisoned)) & twinned
    for shown, is_poisoned in zip(seen, looks, strict=True):
        if not is_poisoned and not shown.resolved:
            return replace(shown, session=replace(shown.session, passed_twins=unfailed))
        if is_poisoned and not beside_twins <= shown.session.twinned:  # this session did not come to its end
            broken = grade.worthless(*shown.session.findings)
            return replace(broken, timed_out=shown.timed_out, session=replace(grade.session, passed_twins=unfailed))
    return replace(grade, session=replace(grade.session, twinned=twinned, passed_twins=unfailed))


async def _side_by_side(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result | BaseException]:
    """Returns what each of the works returns or raises. When this is cancelled, none of the works runs any more."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks)
    finally:
        # Only here, and once: a second cancellation would cut off what a work does at its end.
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    return ended
