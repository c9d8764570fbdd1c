"""Decides what twins say of a grading: whether its tests could still fail, and whether the twins are in order.

Invariants:
- A twin that does not fail convicts only if it fails with the known fix, and only where the known fix passes its test.
- A test that the known fix fails beside its twins was disturbed by them: it gets none, and the patch is run once more.
- What is found out about an instance's tests is kept, also in its proof. So the known fix is run once for an instance,
  and in most cases not at all where the instance was proven.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading.alert import ALERT

# Such a function runs an instance's tests with a patch. The tests of the given names get no twins.
RunWithTwins = Callable[[str, frozenset[str]], Awaitable[Grade]]


@dataclass(slots=True)
class _KnownTwins:
    """Holds what is known about the twins of one instance."""

    weak: set[str] = field(default_factory=set)  # these tests get no twin
    sample: str = field(default_factory=lambda: secrets.token_hex(16))  # decides which tests get twins
    proven: bool = False  # tests have passed beside their twins, and the twins failed
    locks: dict[int, asyncio.Lock] = field(default_factory=dict)  # there is one for each event loop

    def lock(self) -> asyncio.Lock:
        return self.locks.setdefault(id(asyncio.get_running_loop()), asyncio.Lock())


_KNOWN: dict[str, _KnownTwins] = {}


def draw_seed() -> str:
    """Returns the secret that decides about the twins of one grading."""
    return secrets.token_hex(16)


def weak_tests(instance: Instance) -> frozenset[str]:
    """Returns the names of tests whose twins do not fail on right code, as far as that was found out."""
    known = _KNOWN.get(instance.instance_id)
    return frozenset(known.weak) if known else frozenset()


def remember_proof(instance_id: str, weak: Collection[str]) -> None:
    """Notes that the known fix passed its tests beside their twins. Tests of the names in `weak` get no twin."""
    known = _KNOWN.setdefault(instance_id, _KnownTwins())
    known.weak.update(weak)
    known.proven = True


def sample_of(instance: Instance) -> str:
    """Returns a secret that stays the same: twins of the same tests are made for each grading of an instance."""
    return _KNOWN.setdefault(instance.instance_id, _KnownTwins()).sample


async def judge_with_twins(instance: Instance, patch: str, run: RunWithTwins) -> Grade:
    """Returns the verdict on a patch, which is worth nothing where a twin shows that its tests cannot fail.

    Raises GradeError, also where the known fix has to be asked and gives no answer.
    """
    known = _KNOWN.setdefault(instance.instance_id, _KnownTwins())
    verdict = await run(patch, frozenset(known.weak))
    if not verdict.patch_applied or verdict.timed_out or not instance.patch.strip():
        return verdict
    beside_twins = verdict.session.twinned | verdict.session.twinned_failed
    if verdict.resolved and beside_twins and not verdict.session.passed_twins:
        known.proven = True
    if not verdict.resolved and beside_twins and not known.proven:
        disturbed = await _disturbed_by_twins(instance, known, run)
        if disturbed:
            verdict = await run(patch, frozenset(known.weak))
    if verdict.session.passed_twins:
        if await _convicts_patch(instance, known, verdict.session.passed_twins, run):
            ALERT.sound()
            return verdict.worthless("twin_passed")
        if verdict.resolved and verdict.session.twinned <= known.weak:
            # None of these twins proves anything. Without them, other sessions may.
            return await judge_with_twins(instance, patch, run)
    return verdict


async def _disturbed_by_twins(instance: Instance, known: _KnownTwins, run: RunWithTwins) -> bool:
    """Notes which tests the known fix does not pass beside their twins, and tells whether there are any."""
    async with known.lock():
        before = len(known.weak)
        if not known.proven:
            fix = await _run_of_fix(instance, known, run)
            known.weak |= fix.session.passed_twins
            if not fix.resolved:
                # Where a test without a twin is the disturbed one, any of the twins may have done it.
                known.weak |= fix.session.twinned_failed or fix.session.twinned
            known.proven = True
        return len(known.weak) > before


async def _convicts_patch(
    instance: Instance, known: _KnownTwins, passed_twins: frozenset[str], run: RunWithTwins
) -> bool:
    """Tells whether a twin did not fail with the patch and fails with the known fix."""
    async with known.lock():
        fix = await _run_of_fix(instance, known, run)
        known.weak |= fix.session.passed_twins
        return bool((passed_twins - known.weak) & fix.session.twinned)


async def _run_of_fix(instance: Instance, known: _KnownTwins, run: RunWithTwins) -> Grade:
    """Returns the grade of the known fix. Raises GradeError where the known fix got no answer."""
    fix = await run(instance.patch, frozenset(known.weak))
    if fix.session.killed or fix.timed_out or not fix.patch_applied:
        raise GradeError(f"grading {instance.instance_id}: its known fix cannot be compared with the patch")
    return fix
