"""How often the present policy solves each instance, as far as is known, and which instances that speaks for.

Invariants:
- The log-odds of an instance's pass rate are a mean that all instances share and its own deviation from it; both are
  Gaussian. The mean is a random walk, a step of it each time that groups are observed: a policy that improves does so
  on all instances. What is known of a deviation loses precision, until it is that of an instance that nobody has seen.
- A group's result is the normal approximation of its likelihood at the mode (Laplace). The mean hears of all groups of
  a step at once, whatever their order; then each deviation of its own group, given that mean.
- An instance is admitted with a chance in proportion to the expected variance of a trajectory's reward, E[p (1 - p)]:
  it is largest near one half, and near 0 where a group would succeed or fail throughout.
- The chance is 1 for the most informative instance, so that with equal knowledge of all everybody is admitted.
- Nobody starves: who was passed over `MAX_SKIPS` times in a row is admitted.
- No clock and no generator of its own; the state is plain data. What is noted of groups that are complete and not
  trained counts for choices, and is no part of the state: who goes on notes it again.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

MAX_SKIPS = 7  # in a row, of one instance
SPREAD = 4.0  # variance of the instances' log-odds around their mean
FIRST_MEAN = 2.0  # variance of the mean at the start; with `SPREAD`, E[p (1 - p)] is about that of Jeffreys' prior
WALK = 0.2  # variance that a step adds to the mean
# Gauss-Hermite: nodes and weights of a standard normal distribution.
_NODES = (-3.750440, -2.366759, -1.154405, 0.0, 1.154405, 2.366759, 3.750440)
_WEIGHTS = (0.000548, 0.030757, 0.240123, 0.457143, 0.240123, 0.030757, 0.000548)
_NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True)
class GroupResult:
    """`index`: of the instance; `attempts`: trajectories of its group that infrastructure did not break."""

    index: int
    solved: int
    attempts: int


class PassRatesState(TypedDict):
    skipped: list[tuple[int, int]]  # (index, times in a row)
    mean: NotRequired[tuple[float, float]]  # log-odds that all share: expected value and variance
    deviations: NotRequired[
        list[tuple[int, float, float]]
    ]  # (index, expected deviation, variance) of instances that were seen
    counts: NotRequired[list[tuple[int, float, float]]]  # of older versions: (index, solved, failed), faded


@dataclass(slots=True)
class _Known:
    mean: float = 0.0
    variance: float = FIRST_MEAN
    deviations: dict[int, tuple[float, float]] = field(default_factory=dict)  # of instances that were seen

    def log_odds(self, index: int) -> tuple[float, float]:
        """Of an instance: expected value and variance."""
        deviation, variance = self.deviations.get(index, (0.0, SPREAD))
        return self.mean + deviation, self.variance + variance

    def after(self, groups: Iterable[tuple[int, float, float]]) -> "_Known":
        """Having seen them: (index, solved, attempts)."""
        sites = [(index, *_site(solved, attempts, *self.log_odds(index))) for index, solved, attempts in groups]
        precision, weighted = 1.0 / self.variance, self.mean / self.variance
        for index, seen, noise in sites:
            deviation, variance = self.deviations.get(index, (0.0, SPREAD))
            precision += 1.0 / (noise + variance)
            weighted += (seen - deviation) / (noise + variance)
        known = _Known(weighted / precision, 1.0 / precision, dict(self.deviations))
        for index, seen, noise in sites:
            deviation, variance = known.deviations.get(index, (0.0, SPREAD))
            gain = variance / (variance + noise)  # given the mean
            known.deviations[index] = deviation + gain * (seen - known.mean - deviation), (1.0 - gain) * variance
        return known

    def later(self, fades: float) -> "_Known":
        """A step later; `fades`: what is left of the precision of what is known of a deviation."""
        deviations = {
            index: (deviation, min(SPREAD, variance / fades))
            for index, (deviation, variance) in self.deviations.items()
        }
        return _Known(self.mean, self.variance + WALK, deviations)


def _site(solved: float, attempts: float, expected: float, variance: float) -> tuple[float, float]:
    """A group's result as an observation of log-odds, and its variance, where they are expected so."""
    mode = expected
    for _ in range(_NEWTON_STEPS):
        rate = _rate(mode)
        slope = solved - attempts * rate - (mode - expected) / variance
        step = slope / (attempts * rate * (1.0 - rate) + 1.0 / variance)
        mode += max(-1.0, min(1.0, step))
        if abs(step) < 1e-9:
            break
    rate = _rate(mode)
    precision = max(1e-9, attempts * rate * (1.0 - rate))
    return mode + (solved - attempts * rate) / precision, 1.0 / precision


def _rate(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, log_odds))))


def _expected(function: Callable[[float], float], mean: float, variance: float) -> float:
    """Of a pass rate whose log-odds are normal."""
    width = math.sqrt(variance)
    pairs = zip(_NODES, _WEIGHTS, strict=True)
    return sum(weight * function(_rate(mean + width * node)) for node, weight in pairs) / sum(_WEIGHTS)


def _variance(rate: float) -> float:
    return rate * (1.0 - rate)


class PassRates:
    """`half_life_groups`: what was seen of an instance counts half after so many groups."""

    def __init__(self, num_instances: int, half_life_groups: float) -> None:
        if half_life_groups <= 0:
            raise ValueError("what is known fades in a time above 0")
        self._size, self._half_life_groups = num_instances, half_life_groups
        self._known = _Known()
        self._skipped = [0] * num_instances
        self._noted: dict[int, GroupResult] = {}  # by the group's number
        self._present: _Known | None = None  # with what is noted; None: to be computed
        self._largest: float | None = None  # information of any instance; None: to be computed
        self.steers: Callable[[int], bool] = lambda _: False  # whether a prefix brings an instance near one half

    def mean(self, index: int) -> float:
        """The expected pass rate, in [0, 1]."""
        return _expected(float, *self._now().log_odds(index))

    def information(self, index: int) -> float:
        """E[p (1 - p)], in (0, 0.25). Where a prefix steers its group, as of an instance of which nothing is known."""
        return _expected(_variance, *(_Known() if self.steers(index) else self._now()).log_odds(index))

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
        self._present = self._largest = None

    def observe(self, results: Sequence[GroupResult], numbers: Sequence[int] = ()) -> dict[str, float | int | None]:
        """A step's groups, and how well they were foreseen: its part of the record. `numbers`: of those noted before.

        Each is compared with what was known before this step. Of an instance that was never seen nothing was.
        """
        for number in numbers:
            self._noted.pop(number, None)
        self._present = self._largest = None
        foreseen = self._foreseen(results)
        fades = 0.5 ** (len(results) / self._half_life_groups)
        self._known = self._known.later(fades).after(_groups(results))
        return foreseen

    def _foreseen(self, results: Sequence[GroupResult]) -> dict[str, float | int | None]:
        pairs = [
            (_expected(float, *self._known.log_odds(result.index)), result.solved / result.attempts)
            for result in results
            if result.index in self._known.deviations and result.attempts
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

    def _now(self) -> _Known:
        if self._present is None:
            self._present = self._known.after(_groups(result for _, result in sorted(self._noted.items())))
        return self._present

    def state(self) -> PassRatesState:
        return PassRatesState(
            skipped=[(index, times) for index, times in enumerate(self._skipped) if times],
            mean=(self._known.mean, self._known.variance),
            deviations=[(index, *pair) for index, pair in sorted(self._known.deviations.items())],
        )

    def restore(self, state: PassRatesState) -> None:
        """Also of older versions, whose counts are taken as one group of each instance."""
        self._known, self._skipped, self._noted = _Known(), [0] * self._size, {}
        self._present = self._largest = None
        for index, times in state["skipped"]:
            self._skipped[index] = times
        if "mean" in state:
            self._known = _Known(
                *state["mean"], {index: (value, spread) for index, value, spread in state["deviations"]}
            )
        else:
            counts = state.get("counts", [])
            self._known = self._known.after((index, solved, solved + failed) for index, solved, failed in counts)


def _groups(results: Iterable[GroupResult]) -> list[tuple[int, float, float]]:
    return [(result.index, result.solved, result.attempts) for result in results if result.attempts]
