"""Decides what twins say of a grading: whether its tests could still fail, and whether the twins are in order.

The known fix is tried once beside twins of all tests that count. Tests whose twins do not fail there,
or disturb anything, have none from then on. Each grading draws its twins among the others. Right code may keep state
that the known fix does not keep. So a patch that fails beside twins, where they may be the reason, is run without any.

Invariants:
- A twin that does not fail convicts only if it fails with the known fix, and only where the known fix passes its test.
- Only a session beside twins pays. A session without them says at most that others are to be drawn. Then two sessions
  have to pass, because code that guesses passes one of two with twice the chance.
- What is found out about an instance's tests is kept, also in its proof. So the known fix is tried once for an
  instance, and where the instance was proven, not at all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading.alert import ALERT
from swe_rl.env.twins.session import TwinDraw, draw_seed

_CONFIRMATIONS = 2  # sessions beside other twins that have to pass where the first one is contradicted
_DRAWS = 2  # a test may have twins that fail at several places, so more than one draw is tried
# Tests about which nothing is known after so many sessions of a search have no twins. A proof may take its time. A
# patch of the policy has to be graded soon, and its instance may have no proof.
_SESSIONS_OF_PROOF = 24
_SESSIONS_OF_GRADING = 6
# Such a function runs an instance's tests with a patch, beside the twins that are drawn.
RunWithTwins = Callable[[str, TwinDraw], Awaitable[Grade]]


@dataclass(slots=True)
class _KnownTwins:
    """Holds what is known about the twins of one instance."""

    weak: set[str] = field(default_factory=set)  # these tests get no twin
    tried: bool = False  # the known fix was tried beside twins of all tests that count
    locks: dict[int, asyncio.Lock] = field(default_factory=dict)  # there is one for each event loop

    def lock(self) -> asyncio.Lock:
        return self.locks.setdefault(id(asyncio.get_running_loop()), asyncio.Lock())


_KNOWN: dict[str, _KnownTwins] = {}


def weak_tests(instance: Instance) -> frozenset[str]:
    """Returns the names of tests that get no twin: theirs do not fail on right code, or disturb it."""
    known = _KNOWN.get(instance.instance_id)
    return frozenset(known.weak) if known else frozenset()


def is_tried(instance: Instance) -> bool:
    """Tells whether the known fix was tried beside twins of all tests that count."""
    known = _KNOWN.get(instance.instance_id)
    return known is not None and known.tried


def remember_proof(instance_id: str, weak: Collection[str], tried: bool) -> None:
    """Notes what a proof says: tests of the names in `weak` get no twin, and whether twins of all tests were tried."""
    known = _KNOWN.setdefault(instance_id, _KnownTwins())
    known.weak.update(weak)
    known.tried = known.tried or tried


async def judge_with_twins(instance: Instance, patch: str, run: RunWithTwins) -> Grade:
    """Returns the verdict on a patch, which is worth nothing where a twin shows that its tests cannot fail.

    Raises GradeError, also where the known fix has to be asked and gives no answer.
    """
    known = _KNOWN.setdefault(instance.instance_id, _KnownTwins())
    draw = TwinDraw(draw_seed(), frozenset(known.weak))
    verdict = await run(patch, draw)
    # One further session may have run out of time, and another one convicts all the same.
    is_cut = verdict.timed_out and not verdict.session.passed_twins
    if not verdict.patch_applied or is_cut or not instance.patch.strip():
        return verdict
    is_fix = patch == instance.patch
    if verdict.session.companioned and not known.tried and (is_fix or not verdict.resolved):
        await _try_known_fix(instance, known, run, _SESSIONS_OF_PROOF if is_fix else _SESSIONS_OF_GRADING)
        if (verdict.session.companioned & known.weak) or (is_fix and not verdict.resolved):
            draw = TwinDraw(draw_seed(), frozenset(known.weak))
            verdict = await run(patch, draw)
    if verdict.session.passed_twins:
        return await _judge_unfailed(instance, patch, verdict, draw, run)
    if _may_be_disturbed(verdict) and (await run(patch, TwinDraw.none())).resolved:
        return await _confirm(instance, patch, verdict, draw, run)
    return verdict


def _may_be_disturbed(verdict: Grade) -> bool:
    """Tells whether twins may be the reason of a failure.

    A test that has to be fixed passes all the same, tests and their copies disagree, or the session ended among its
    tests. A patch that fixes nothing shows none of it, so most patches that fail have no further session.
    """
    if verdict.resolved or not verdict.session.companioned:
        return False
    return verdict.session.unclear or any(verdict.fail_to_pass.values())


async def _confirm(instance: Instance, patch: str, verdict: Grade, draw: TwinDraw, run: RunWithTwins) -> Grade:
    """Returns the verdict of sessions beside other twins on a patch that failed beside some and passes without any."""
    known = _KNOWN[instance.instance_id]
    async with known.lock():
        fix = await run(instance.patch, draw)
        if not fix.resolved and not fix.timed_out:
            await _Search(instance, run, known.weak, _SESSIONS_OF_GRADING).search(draw.seed)
    for _ in range(_CONFIRMATIONS):
        again = TwinDraw(draw_seed(), frozenset(known.weak))
        shown = await run(patch, again)
        if shown.session.passed_twins:
            return await _judge_unfailed(instance, patch, shown, again, run)
        if not shown.resolved:
            return verdict
    return shown


async def _judge_unfailed(instance: Instance, patch: str, verdict: Grade, draw: TwinDraw, run: RunWithTwins) -> Grade:
    """Returns the verdict on a patch with which twins did not fail."""
    known = _KNOWN[instance.instance_id]
    async with known.lock():
        fix = await run(instance.patch, draw)
        if fix.session.killed or fix.timed_out or not fix.patch_applied:
            raise GradeError(f"grading {instance.instance_id}: its known fix cannot be compared with the patch")
        known.weak |= fix.session.passed_twins
    if (verdict.session.passed_twins - known.weak) & fix.session.twinned:
        ALERT.sound()
        return replace(verdict.worthless("twin_passed"), timed_out=False)
    if verdict.resolved and verdict.session.twinned <= known.weak:
        # None of these twins proves anything. Without them, other sessions may.
        return await judge_with_twins(instance, patch, run)
    return verdict


async def _try_known_fix(instance: Instance, known: _KnownTwins, run: RunWithTwins, sessions: int) -> None:
    """Tries the known fix beside twins of all tests that count, and notes which tests are to have none.

    It takes about so many `sessions`, where twins disturb, and two elsewhere.
    """
    async with known.lock():
        if not known.tried:
            search = _Search(instance, run, known.weak, sessions)
            for _ in range(_DRAWS):
                await search.search(draw_seed())
            known.tried = True


@dataclass(slots=True)
class _Search:
    """Finds the tests of an instance whose twins disturb the known fix, or do not fail with it.

    Their names come into `weak`. A group of tests beside whose twins the known fix fails is halved until the tests are
    found that do it. Each session's twins are drawn by the seed of the search.
    """

    instance: Instance
    run: RunWithTwins
    weak: set[str]
    sessions_left: int

    async def search(self, seed: str) -> None:
        """Tries twins of all tests that count. Raises GradeError."""
        shown = await self._ask(seed, None)
        group = shown.session.companioned - self.weak
        if _is_harmless(shown):
            # What never runs says nothing, and looks as if the session had ended before.
            self.weak |= group - shown.session.twinned - shown.session.twinned_failed
            return
        if not shown.resolved and not (await self.run(self.instance.patch, TwinDraw.none())).resolved:
            return  # the twins are not the reason
        await self._judge_group(seed, group, shown)

    async def _ask(self, seed: str, only: frozenset[str] | None) -> Grade:
        self.sessions_left -= 1
        shown = await self.run(self.instance.patch, TwinDraw(seed, frozenset(self.weak), only, is_whole=True))
        if shown.session.killed or not shown.patch_applied:
            raise GradeError(f"grading {self.instance.instance_id}: its known fix cannot be run beside twins")
        return shown

    async def _judge_group(self, seed: str, group: frozenset[str], shown: Grade) -> None:
        """Notes which tests of a group are not to have twins, by what their session showed."""
        if _is_harmless(shown):
            return
        unfailed = shown.session.passed_twins
        if len(group) <= 1 or self.sessions_left <= 0:
            self.weak |= group
        elif shown.resolved and unfailed < group:
            self.weak |= unfailed
        else:
            for part in self._parts_of(group, shown):
                await self._judge_group(seed, part, await self._ask(seed, part))

    def _parts_of(self, group: frozenset[str], shown: Grade) -> list[frozenset[str]]:
        """Returns two parts of a group. Tests that failed beside their twins are apart from the others."""
        failed = shown.session.twinned_failed & group
        names = sorted(group - failed) + sorted(failed)
        middle = len(names) // 2 if not failed or failed == group else len(names) - len(failed)
        return [frozenset(names[:middle]), frozenset(names[middle:])]


def _is_harmless(shown: Grade) -> bool:
    return shown.resolved and not shown.session.passed_twins
