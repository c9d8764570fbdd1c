"""Measures which tests a fix turns: the suite runs several times without the gold patch and with it.

Invariants:
- A test of FAIL_TO_PASS fails, or is not there, in every run without the patch, and passes in every run with it.
- A test of PASS_TO_PASS passes in every run. What passes in some runs of one side is flaky, and in neither list.
- The code is pure: runs of tests come in, lists of names come out, in the order of their names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.env.env import SuiteRun
from swe_rl.errors import one_line

RUNS = 3  # Each side has at least so many runs, because a single run shows no flaky test.
# The reason of a fix whose tests were too slow begins so. It says more of the machine than of the fix.
TIMED_OUT = "its tests did not end in time"
_WORDS_CHARS = 200
# The grader's own script prints such lines.
_MARKER_LINE = re.compile(r"^(?:\++ echo ')?swe_rl [0-9a-f]{32} [^\n]*$\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MeasuredFix:
    """Holds the tests that the fix turns, or the reason why its tests cannot judge it."""

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    reason: str = ""  # The reason says why nothing can be judged by these tests; it is empty if they judge.
    log: str = ""

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Returns what a proof without lists says of its gold patch.

        Slow runs say more of the machine than of the instance: they are no verdict, and it is tried again.
        """
        return () if self.reason.startswith(TIMED_OUT) else ("unresolved",)


def measure_fix(before: Sequence[SuiteRun], after: Sequence[SuiteRun]) -> MeasuredFix:
    """Returns what the runs show.

    The runs of `before` have the tests of the fix and not the fix itself; those of `after` have both.
    """
    for side, runs in (("without its gold patch", before), ("with its gold patch", after)):
        if reason := _side_failure(side, runs):
            return MeasuredFix(reason=reason, log=runs[-1].log)
    passes = _always_passing(after)
    passed = _always_passing(before)
    flaky = (_ever_passing(after) - passes) | (_ever_passing(before) - passed)
    turned = tuple(sorted(passes - _ever_passing(before)))
    reason = ""
    if not any(run.passed for run in after):
        words = last_words_of_suite(after[-1].log)
        reason = f"its log names no test with its gold patch; its command and its log_parser must fit: {words}"
    elif not passes:
        reason = f"no test passes with its gold patch: {last_words_of_suite(after[-1].log)}"
    elif not turned:
        reason = f"none of the {len(passes)} tests that pass with its gold patch fails without it"
    return MeasuredFix(turned, tuple(sorted((passes & passed) - flaky)), tuple(sorted(flaky)), reason, after[-1].log)


def _side_failure(side: str, runs: Sequence[SuiteRun]) -> str:
    """Returns why the runs of one side cannot be used, and an empty text if they can."""
    if any(run.timed_out for run in runs):
        return f"{TIMED_OUT} {side} (rollout.grade_timeout_s)"
    unapplied = next((run for run in runs if not run.patch_applied), None)
    return f"its gold patch does not apply: {last_words_of_suite(unapplied.log)}" if unapplied else ""


def _always_passing(runs: Sequence[SuiteRun]) -> frozenset[str]:
    return frozenset.intersection(*map(_passing_tests, runs))


def _ever_passing(runs: Sequence[SuiteRun]) -> frozenset[str]:
    return frozenset.union(*map(_passing_tests, runs))


def _passing_tests(run: SuiteRun) -> frozenset[str]:
    return frozenset(name for name, passed in run.passed.items() if passed)


def last_words_of_suite(log: str) -> str:
    """Returns the end of a log without the lines that the grader itself adds."""
    return one_line(_MARKER_LINE.sub("", log).strip()[-_WORDS_CHARS:])
