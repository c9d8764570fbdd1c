"""How often the present policy solves each instance, as far as is known, and which instances that speaks for.

Invariants:
- What is known of an instance is a Beta posterior: solved and failed trajectories above Jeffreys' prior. Both fade with
  every group that is observed, as the policy moves (discounted counts, as in arXiv:1707.09727, section 3).
- An instance is admitted with a chance in proportion to the expected variance of a trajectory's reward, E[p (1 - p)]:
  it is largest near one half, and near 0 where a group would succeed or fail throughout.
- The chance is 1 for the most informative instance, so that with equal knowledge of all everybody is admitted.
- Nobody starves: who was passed over `MAX_SKIPS` times in a row is admitted.
- No clock and no generator of its own; the state is plain data. What is noted of groups that are complete and not
  trained counts for choices, and is no part of the state: who goes on notes it again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

MAX_SKIPS = 7  # in a row, of one instance
PRIOR = 0.5  # of either side (Jeffreys)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """`index`: of the instance; `attempts`: trajectories of its group that infrastructure did not break."""

    index: int
    solved: int
    attempts: int


class PassRatesState(TypedDict):
    counts: list[tuple[int, float, float]]  # (index, solved, failed) of instances that were seen, faded
    skipped: list[tuple[int, int]]  # (index, times in a row)


class PassRates:
    """`half_life_groups`: what was seen counts half after so many groups."""

    def __init__(self, num_instances: int, half_life_groups: float) -> None:
        if half_life_groups <= 0:
            raise ValueError("what is known fades in a time above 0")
        self._size, self._half_life_groups = num_instances, half_life_groups
        self._solved, self._failed = [0.0] * num_instances, [0.0] * num_instances
        self._skipped = [0] * num_instances
        self._noted: dict[int, GroupResult] = {}  # by the group's number
        self._largest: float | None = None  # information of any instance; None: to be computed
        self.steers: Callable[[int], bool] = lambda _: False  # whether a prefix brings an instance near one half

    def mean(self, index: int) -> float:
        """The expected pass rate, in [0, 1]."""
        solved, failed = self._beta(index)
        return solved / (solved + failed)

    def information(self, index: int) -> float:
        """E[p (1 - p)] = a b / ((a + b) (a + b + 1)) of Beta(a, b), in (0, 0.25).
        Where a prefix steers its group, that of an instance that nobody has seen."""
        solved, failed = (PRIOR, PRIOR) if self.steers(index) else self._beta(index)
        total = solved + failed
        return solved * failed / (total * (total + 1.0))

    def admits(self, index: int, generator: random.Random) -> bool:
        """Whether a group of this instance shall begin. Its draw is taken from `generator` in any case."""
        draw = generator.random()
        if self._largest is None:
            self._largest = max(self.information(other) for other in range(self._size))
        admitted = self._skipped[index] >= MAX_SKIPS or draw * self._largest < self.information(index)
        if admitted:
            self._skipped[index] = 0
        else:
            self.pass_over(index)
        return admitted

    def pass_over(self, index: int) -> None:
        self._skipped[index] += 1

    def note(self, number: int, result: GroupResult) -> None:
        """A group is complete; it will be observed when it is trained."""
        self._noted[number] = result
        self._largest = None

    def observe(self, results: Sequence[GroupResult], numbers: Sequence[int] = ()) -> dict[str, float | int | None]:
        """A step's groups, and how well they were foreseen: its part of the record. `numbers`: of those noted before.

        Each is compared with what was known before this step. Of an instance that was never seen nothing was.
        """
        for number in numbers:
            self._noted.pop(number, None)
        self._largest = None
        foreseen = self._foreseen(results)
        fades = 0.5 ** (len(results) / self._half_life_groups)
        self._solved = [count * fades for count in self._solved]
        self._failed = [count * fades for count in self._failed]
        for result in results:
            self._solved[result.index] += result.solved
            self._failed[result.index] += result.attempts - result.solved
        return foreseen

    def _foreseen(self, results: Sequence[GroupResult]) -> dict[str, float | int | None]:
        pairs = [
            ((PRIOR + solved) / (2 * PRIOR + solved + failed), result.solved / result.attempts)
            for result in results
            if (solved := self._solved[result.index]) + (failed := self._failed[result.index]) > 0 and result.attempts
        ]
        count = len(pairs)
        return {
            "foreseen_groups": count,
            "pass_rate_expected": sum(expected for expected, _ in pairs) / count if pairs else None,
            "pass_rate_seen": sum(seen for _, seen in pairs) / count if pairs else None,
            "pass_rate_error": (sum((expected - seen) ** 2 for expected, seen in pairs) / count) ** 0.5
            if pairs
            else None,
        }

    def _beta(self, index: int) -> tuple[float, float]:
        noted = [result for result in self._noted.values() if result.index == index]
        solved = sum(result.solved for result in noted)
        failed = sum(result.attempts for result in noted) - solved
        return PRIOR + self._solved[index] + solved, PRIOR + self._failed[index] + failed

    def state(self) -> PassRatesState:
        pairs = enumerate(zip(self._solved, self._failed, strict=True))
        return PassRatesState(
            counts=[(index, solved, failed) for index, (solved, failed) in pairs if solved or failed],
            skipped=[(index, times) for index, times in enumerate(self._skipped) if times],
        )

    def restore(self, state: PassRatesState) -> None:
        self._solved, self._failed = [0.0] * self._size, [0.0] * self._size
        self._skipped, self._noted, self._largest = [0] * self._size, {}, None
        for index, solved, failed in state["counts"]:
            self._solved[index], self._failed[index] = solved, failed
        for index, times in state["skipped"]:
            self._skipped[index] = times
