"""Looks again at a patch that would be paid.

Can these tests still tell right from wrong? Where twins can stand beside the tests, they say so in the first session.
Elsewhere a session says only whether all tests passed. So the tests of a patch that would be paid run several times
more, with right expectations or with wrong ones, in an order that nobody outside can know. Tests that pass with wrong
expectations pass whatever the code does. `twin_trial.py` compares that with the known fix.

Invariants:
- Code that lets its tests pass at random, without a look at what they expect, is paid at most once in 53 times. Code
  that acts by the clock is paid at most once in 31 times.
- The sessions run side by side, so the clock says little, and a right patch waits about as long as for one more.
- How many sessions there are depends on the time that the known fix takes, not the patch: code may sleep.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, PytestSession

_MOST_LOOKS = 5  # with so many further sessions in an unknown order, chance passes all of them once in 53 times
_LOOKS_S = 60.0  # further sessions take about so long at most, but there is always one

Result = TypeVar("Result")


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

    `plain` runs them with a patch. `poisoned` changes what the tests expect as a seed says; it also returns the names
    of what was changed, and "" if nothing was. `measure_fix` returns how many seconds the tests of the known fix take.
    """

    plain: Callable[[str], Awaitable[Grade]]
    poisoned: Callable[[str, str], Awaitable[tuple[str, Grade]]]
    measure_fix: Callable[[], Awaitable[float]]


async def with_more_sessions(instance: Instance, grade: Grade, patch: str, sessions: Sessions, seed: str) -> Grade:
    """Returns `grade` with what further sessions say, or that of a session in which the tests did not pass again.

    `seed` decides about the sessions, which run side by side. The known fix has those alone that have to fail. Raises
    GradeError.
    """
    if not grade.resolved or not instance.patch.strip():  # without a known fix nothing is convicted
        return grade
    looks = draw_looks(looks_within(await sessions.measure_fix()), random.Random(seed))

    async def look(number: int, is_poisoned: bool) -> tuple[str, Grade]:
        if is_poisoned:
            return await sessions.poisoned(patch, f"{seed}-{number}")
        return "", grade if patch == instance.patch else await sessions.plain(patch)

    seen = await _side_by_side([look(number, is_poisoned) for number, is_poisoned in enumerate(looks)])
    failed = [shown for (_, shown), is_poisoned in zip(seen, looks, strict=True) if not (is_poisoned or shown.resolved)]
    if failed:
        return failed[0]
    poisoned = frozenset(names for names, _ in seen if names)  # it is empty where nobody knows how to make tests fail
    unfailed = frozenset(names for names, shown in seen if names and shown.resolved)
    return replace(grade, session=PytestSession(twinned=poisoned, passed_twins=unfailed))


async def _side_by_side(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Returns what each of the works returns. Raises the first error, when none of the works runs any more."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
