"""Splits a change into tasks by running tests: for each test that the change turns, the smallest set of its hunks.

Invariants:
- A set of hunks is 1-minimal for the test that it was found with: without any one of them this test fails. Where the
  budget ends, or a run does not end in time, what is not reduced yet is no task. A run that does not end in time says
  nothing of its tests: so a slow machine finds fewer tasks, and never other ones.
- Tests with the same set are one task. Its id names the set's patch by a hash: the same on every machine.
- A run of the tests is never made twice for the same set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.mining.candidate import Reason, TaskCandidate, changed_lines
from swe_rl.env.mining.hunks import digest_of_patch, hunks_of, patch_of
from swe_rl.env.mining.leaks import shows_fix
from swe_rl.env.mining.minimise import minimal_subset
from swe_rl.env.mining.runs import BudgetEndedError, CountedRuns, TestsTimedOutError
from swe_rl.env.patch_files import NOOP_PATCH

# Each side is run so often before anything is split: a test that passes in one of the runs only is flaky.
_RUNS_OF_A_SIDE = 2


@dataclass(frozen=True, slots=True)
class SplitChange:
    """Holds the smallest sets of hunks with all tests that each turns, and the tests that have no set.

    `stopped` says why these tests have none, and is None where each test has a set.
    """

    groups: Mapping[tuple[int, ...], Sequence[str]]
    left: Sequence[str] = ()
    stopped: Reason | None = None


@dataclass(slots=True)
class ChangeSplitter:
    """Splits the change of one instance whose tests nobody measured yet."""

    instance: Instance
    runs: CountedRuns
    _known: dict[frozenset[int], frozenset[str]] = field(default_factory=dict)

    async def split(self) -> SplitChange:
        """Returns the sets of hunks.

        Raises BudgetEndedError or TestsTimedOutError where not even the tests that the change turns are known.
        """
        hunks = hunks_of(self.instance.patch)
        everything = tuple(range(len(hunks)))
        before = [await self.runs.passing(self.instance, NOOP_PATCH) for _ in range(_RUNS_OF_A_SIDE)]
        after = [await self.runs.passing(self.instance, self.instance.patch) for _ in range(_RUNS_OF_A_SIDE)]
        turned = sorted(frozenset.intersection(*after) - frozenset.union(*before))
        self._known[frozenset(everything)] = frozenset.intersection(*after)
        sets: list[tuple[int, ...]] = []
        left: list[str] = []
        stopped: Reason | None = None
        for number, test in enumerate(turned):
            try:
                chosen = await self._smallest(test, everything, sets)
            except (BudgetEndedError, TestsTimedOutError) as error:
                # The search for the next test begins with the sets of those before it. So it would find another set.
                stopped = error.reason
                left = turned[number:]
                break
            if chosen not in sets:
                sets.append(chosen)
        # A set turns tests of smaller sets, too: it is about all of them.
        groups = {chosen: [test for test in turned if test in self._known[frozenset(chosen)]] for chosen in sets}
        return SplitChange(groups, left, stopped)

    async def _smallest(
        self, test: str, everything: tuple[int, ...], sets: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Returns a 1-minimal set of hunks with which a test passes. Raises BudgetEndedError, TestsTimedOutError."""
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
        split = await splitter.split()
    except (BudgetEndedError, TestsTimedOutError) as error:
        return [replace(without, reason=error.reason, detail=str(error))]
    if not split.groups and not split.left:
        return [replace(without, reason=Reason.nothing_turned, detail=runs.spent)]
    parts = [part_of(candidate, instance, chosen, tests, max_changed_lines) for chosen, tests in split.groups.items()]
    parts = [replace(part, detail="; ".join(filter(None, (part.detail, f"of {runs.spent}")))) for part in parts]
    if split.left:
        words = f"{len(split.left)} tests, as {split.left[0]}: {runs.spent}"
        parts.append(replace(without, reason=split.stopped, detail=words))
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
    if not statement:
        return replace(named, reason=Reason.no_statement)
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
