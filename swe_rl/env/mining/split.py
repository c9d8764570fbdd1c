"""Splits a change into tasks by running tests: for each test that the change turns, the smallest set of its hunks.

Invariants:
- A set of hunks is 1-minimal: without any one of them its tests fail. What could not be reduced so far within the
  budget is no task. A run that does not end in time counts as one whose tests fail, so that a very slow machine may
  find other tasks.
- Tests with the same set are one task. Its id names the set's patch by a hash: the same on every machine.
- A run of the tests is never made twice for the same set.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.mining.candidate import Reason, TaskCandidate, changed_lines, shows_fix
from swe_rl.env.mining.hunks import digest_of_patch, hunks_of, patch_of
from swe_rl.env.mining.minimise import minimal_subset
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.env.protocol import SuiteRun

# Each side is run so often before anything is split: a test that passes in one of the runs only is flaky.
_RUNS_OF_A_SIDE = 2
# It is called with the instance, a patch, and the seconds that the run may last; None means the configured ones.
SuiteRunner = Callable[[Instance, str, float | None], Awaitable[SuiteRun]]


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Bounds what one release may cost: runs of its tests, and seconds."""

    runs: int
    seconds: float


class BudgetEndedError(Exception):
    """Says that the budget of a release allows no further run."""


@dataclass(slots=True)
class CountedRuns:
    """Runs tests within a budget. `made` is the number of runs so far."""

    run: SuiteRunner
    budget: RunBudget
    made: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> str:
        """Returns the cost in words, for the report."""
        return f"{self.made} runs of tests in {time.monotonic() - self.began_s:.0f} s"

    async def passing(self, instance: Instance, patch: str, timeout_s: float | None = None) -> frozenset[str]:
        """Returns the tests that pass with a patch. Raises BudgetEndedError, and what the runner raises."""
        if self.made >= self.budget.runs or time.monotonic() - self.began_s >= self.budget.seconds:
            raise BudgetEndedError(self.spent)
        self.made += 1
        run = await self.run(instance, patch, timeout_s)
        return frozenset(name for name, passed in run.passed.items() if passed)


@dataclass(slots=True)
class ChangeSplitter:
    """Splits the change of one instance whose tests nobody measured yet."""

    instance: Instance
    runs: CountedRuns
    _known: dict[frozenset[int], frozenset[str]] = field(default_factory=dict)

    async def split(self) -> tuple[dict[tuple[int, ...], list[str]], list[str]]:
        """Returns the smallest sets of hunks with all tests that each turns, and the tests without a set.

        Raises BudgetEndedError where the budget does not even show which tests the change turns.
        """
        hunks = hunks_of(self.instance.patch)
        everything = tuple(range(len(hunks)))
        before = [await self.runs.passing(self.instance, NOOP_PATCH) for _ in range(_RUNS_OF_A_SIDE)]
        after = [await self.runs.passing(self.instance, self.instance.patch) for _ in range(_RUNS_OF_A_SIDE)]
        turned = sorted(frozenset.intersection(*after) - frozenset.union(*before))
        self._known[frozenset(everything)] = frozenset.intersection(*after)
        sets: list[tuple[int, ...]] = []
        left: list[str] = []
        for number, test in enumerate(turned):
            try:
                chosen = await self._smallest(test, everything, sets)
            except BudgetEndedError:
                left = turned[number:]
                break
            if chosen not in sets:
                sets.append(chosen)
        # A set turns tests of smaller sets, too: it is about all of them.
        return {chosen: [test for test in turned if test in self._known[frozenset(chosen)]] for chosen in sets}, left

    async def _smallest(
        self, test: str, everything: tuple[int, ...], sets: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Returns a 1-minimal set of hunks with which a test passes. Raises BudgetEndedError."""
        start = everything
        # A set that another test needs is often enough for this one, and it is smaller than the whole.
        for chosen in sorted(sets, key=len):
            if test in await self._passing(chosen):
                start = chosen
                break
        search = minimal_subset(start)
        try:
            asked = next(search)
            while True:
                asked = search.send(test in await self._passing(asked))
        except StopIteration as end:
            smallest: tuple[int, ...] = end.value
            return smallest

    async def _passing(self, chosen: Sequence[int]) -> frozenset[str]:
        key = frozenset(chosen)
        if key not in self._known:
            patch = patch_of(hunks_of(self.instance.patch), chosen)
            self._known[key] = await self.runs.passing(self.instance, patch)
        return self._known[key]


async def split_candidate(candidate: TaskCandidate, runs: CountedRuns, max_changed_lines: int) -> list[TaskCandidate]:
    """Returns a candidate for each part of a change, and one without an instance for what gave none.

    `candidate` has an instance. Raises what the runner of the tests raises.
    """
    instance = candidate.instance
    assert instance is not None
    without = replace(candidate, instance=None)
    splitter = ChangeSplitter(instance, runs)
    try:
        groups, left = await splitter.split()
    except BudgetEndedError as error:
        return [replace(without, reason=Reason.budget, detail=str(error))]
    if not groups and not left:
        return [replace(without, reason=Reason.nothing_turned, detail=runs.spent)]
    parts = [part_of(candidate, instance, chosen, tests, max_changed_lines) for chosen, tests in groups.items()]
    parts = [replace(part, detail="; ".join(filter(None, (part.detail, f"of {runs.spent}")))) for part in parts]
    if left:
        words = f"{len(left)} tests, as {left[0]}: {runs.spent}"
        parts.append(replace(without, reason=Reason.budget, detail=words))
    return parts


def part_of(
    candidate: TaskCandidate, instance: Instance, chosen: Sequence[int], tests: Sequence[str], max_changed_lines: int
) -> TaskCandidate:
    """Returns the candidate of a set of hunks that turns these tests, or the reason why it is none."""
    hunks = hunks_of(instance.patch)
    patch = patch_of(hunks, chosen)
    digest = digest_of_patch(patch)
    named = replace(candidate, name=f"{candidate.name}-{digest}", instance=None, detail=f"{len(chosen)} hunks")
    if changed_lines(patch) > max_changed_lines:
        return replace(named, reason=Reason.too_large, detail=f"{changed_lines(patch)} lines")
    statement = instance.problem_statement
    if len(chosen) < len(hunks) or statement == candidate.words.heading:
        statement = candidate.words.statement_of_part(_function_names(tests))
    if shows_fix(statement, patch):
        return replace(named, reason=Reason.leak)
    part = replace(instance, instance_id=f"{instance.instance_id}-{digest}", patch=patch, problem_statement=statement)
    recipe = None
    if candidate.recipe is not None:
        recipe = replace(candidate.recipe, hunks=tuple(chosen), tests=tuple(tests))
    return replace(named, instance=part, recipe=recipe)


def _function_names(tests: Sequence[str]) -> list[str]:
    """Returns the names of test functions, each once: `test_a` for `tests/test_b.py::TestC::test_a[1-2]`."""
    names = [test.rpartition("[")[0] or test if test.endswith("]") else test for test in tests]
    return list(dict.fromkeys(name.rpartition("::")[2] for name in names))
