"""Runs the tests of one change or release while it is searched, within a budget, and counts what that cost.

Invariants:
- Only runs of tests count against the budget. Making the environment is counted apart from them.
- A run that does not end in time says nothing of its tests: it is an error, and never a run whose tests fail.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import SuiteRun
from swe_rl.env.mining.candidate import Reason
from swe_rl.env.proof.measure import last_words_of_suite

# It is called with the instance, a patch, and the seconds that the run may last; None means the configured ones.
SuiteRunner = Callable[[Instance, str, float | None], Awaitable[SuiteRun]]


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Bounds what one release may cost: runs of its tests, and seconds of these runs."""

    runs: int
    seconds: float


class BudgetEndedError(Exception):
    """Says that the budget of a release allows no further run."""

    reason = Reason.budget


class TestsTimedOutError(Exception):
    """Says that a run of the tests did not end in time, so nothing is known of its tests."""

    reason = Reason.timed_out


@dataclass(slots=True)
class CountedRuns:
    """Runs tests within a budget. `made` is the number of runs so far, and `timed_out` how many did not end in time."""

    run: SuiteRunner
    budget: RunBudget
    build_s: float = 0.0  # Making the environment took so long, before the first run.
    made: int = 0
    timed_out: int = 0
    tests_s: float = 0.0
    last_words: str = ""  # This is the end of the last run's log.
    not_passed: int = 0  # In the last run so many tests failed or were skipped.

    @property
    def spent(self) -> str:
        """Returns the cost in words, for the report."""
        late = f", of which {self.timed_out} did not end in time" if self.timed_out else ""
        return (
            f"{self.made} runs of tests in {self.tests_s:.0f} s{late}, in an environment made in {self.build_s:.0f} s"
        )

    async def passing(self, instance: Instance, patch: str, timeout_s: float | None = None) -> frozenset[str]:
        """Returns the tests that pass with a patch. A run lasts no longer than what the budget has left.

        Raises BudgetEndedError, TestsTimedOutError, and what the runner raises.
        """
        if self.made >= self.budget.runs or self.tests_s >= self.budget.seconds:
            raise BudgetEndedError(self.spent)
        self.made += 1
        left_s = self.budget.seconds - self.tests_s
        began_s = time.monotonic()
        run = await self.run(instance, patch, left_s if timeout_s is None else min(timeout_s, left_s))
        self.tests_s += time.monotonic() - began_s
        self.last_words = last_words_of_suite(run.log)
        if run.timed_out:
            self.timed_out += 1
            raise (
                BudgetEndedError(self.spent) if self.tests_s >= self.budget.seconds else TestsTimedOutError(self.spent)
            )
        passing = frozenset(name for name, passed in run.passed.items() if passed)
        self.not_passed = len(run.passed) - len(passing)
        return passing
