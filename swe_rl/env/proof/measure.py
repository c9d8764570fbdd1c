"""Which tests a fix turns, measured: the suite runs several times without the gold patch and with it.

Invariants:
- FAIL_TO_PASS: fails, or is not there, in every run without the patch, and passes in every run with it.
- PASS_TO_PASS: passes in every run. What passes in some runs of one side is flaky, and in neither list.
- Pure: runs of tests come in, lists of names come out, in the order of their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.env.protocol import SuiteRun
from swe_rl.errors import one_line

RUNS = 3  # of each side, at least
_WORDS_CHARS = 200


@dataclass(frozen=True, slots=True)
class Measured:
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    reason: str = ""  # why nothing can be judged by these tests
    log: str = ""


def measured(before: Sequence[SuiteRun], after: Sequence[SuiteRun]) -> Measured:
    """`before`: with the tests of the fix and without the fix itself; `after`: with both."""
    for side, runs in (("without its gold patch", before), ("with its gold patch", after)):
        if reason := _failure(side, runs):
            return Measured(reason=reason, log=runs[-1].log)
    passes, passed = _always(after), _always(before)
    flaky = (_ever(after) - passes) | (_ever(before) - passed)
    turned = tuple(sorted(passes - _ever(before)))
    reason = ""
    if not passes:
        reason = f"no test passes with its gold patch: {_last_words(after[-1].log)}"
    elif not turned:
        reason = f"none of the {len(passes)} tests that pass with its gold patch fails without it"
    return Measured(turned, tuple(sorted((passes & passed) - flaky)), tuple(sorted(flaky)), reason, after[-1].log)


def _failure(side: str, runs: Sequence[SuiteRun]) -> str:
    if any(run.timed_out for run in runs):
        return f"its tests did not end in time {side} (rollout.grade_timeout_s)"
    unapplied = next((run for run in runs if not run.patch_applied), None)
    return f"its gold patch does not apply: {_last_words(unapplied.log)}" if unapplied else ""


def _always(runs: Sequence[SuiteRun]) -> frozenset[str]:
    return frozenset.intersection(*map(_passing, runs))


def _ever(runs: Sequence[SuiteRun]) -> frozenset[str]:
    return frozenset.union(*map(_passing, runs))


def _passing(run: SuiteRun) -> frozenset[str]:
    return frozenset(name for name, passed in run.passed.items() if passed)


def _last_words(log: str) -> str:
    return one_line(log.strip()[-_WORDS_CHARS:])
