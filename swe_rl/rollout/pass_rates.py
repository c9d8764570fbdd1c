"""Estimates how often the present policy solves each instance, and which instances that speaks for.

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
- There is no clock and no generator of its own; the state is plain data. What is noted of groups that are complete and
  not trained counts for choices, and is no part of the state: who goes on notes it again.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

# One instance may be passed over this often in a row.
MAX_SKIPS = 7
# This is the variance of the instances' log-odds around their mean.
SPREAD = 4.0
# This is the variance of the mean at the start; with `SPREAD`, E[p (1 - p)] is about that of Jeffreys' prior.
FIRST_MEAN = 2.0
# A step adds this variance to the mean.
WALK = 0.2
# These are Gauss-Hermite nodes and weights of a standard normal distribution.
_NODES = (-3.750440, -2.366759, -1.154405, 0.0, 1.154405, 2.366759, 3.750440)
_WEIGHTS = (0.000548, 0.030757, 0.240123, 0.457143, 0.240123, 0.030757, 0.000548)
# Newton's steps are cut at 1, so that a start far from the mode needs some; near it three or four are enough.
_NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of a group of the instance `index`; `attempts` are those that infrastructure did not break."""

    index: int
    solved: int
    attempts: int


class PassRatesState(TypedDict):
    # These are (index, times in a row).
    skipped: list[tuple[int, int]]
    # These are expected value and variance of the log-odds that all share.
    mean: NotRequired[tuple[float, float]]
    deviations: NotRequired[
        list[tuple[int, float, float]]
    ]  # (index, expected deviation, variance) of instances that were seen
    counts: NotRequired[list[tuple[int, float, float]]]  # of older versions: (index, solved, failed), faded


@dataclass(slots=True)
class _KnownRate:
    mean: float = 0.0
    variance: float = FIRST_MEAN
    deviations: dict[int, tuple[float, float]] = field(default_factory=dict)  # of instances that were seen

    def log_odds(self, index: int) -> tuple[float, float]:
        """Returns expected value and variance for an instance."""
        deviation, variance = self.deviations.get(index, (0.0, SPREAD))
        return self.mean + deviation, self.variance + variance

    def after(self, groups: Iterable[tuple[int, float, float]]) -> "_KnownRate":
        """Returns what is known after groups were seen: (index, solved, attempts)."""
        sites = [
            (index, *_observe_log_odds(solved, attempts, *self.log_odds(index))) for index, solved, attempts in groups
        ]
        precision = 1.0 / self.variance
        weighted = self.mean / self.variance
        for index, seen, noise in sites:
            deviation, variance = self.deviations.get(index, (0.0, SPREAD))
            precision += 1.0 / (noise + variance)
            weighted += (seen - deviation) / (noise + variance)
        known = _KnownRate(weighted / precision, 1.0 / precision, dict(self.deviations))
        for index, seen, noise in sites:
            deviation, variance = known.deviations.get(index, (0.0, SPREAD))
            # The gain is that given the mean.
            gain = variance / (variance + noise)
            known.deviations[index] = deviation + gain * (seen - known.mean - deviation), (1.0 - gain) * variance
        return known

    def later(self, fades: float) -> "_KnownRate":
        """Returns what is known a step later. `fades` is what is left of the precision of what is known
        of a deviation.
        """
        deviations = {
            index: (deviation, min(SPREAD, variance / fades))
            for index, (deviation, variance) in self.deviations.items()
        }
        return _KnownRate(self.mean, self.variance + WALK, deviations)


def _observe_log_odds(solved: float, attempts: float, expected: float, variance: float) -> tuple[float, float]:
    """Returns a group's result as an observation of log-odds, and its variance, where they are expected so."""
    mode = expected
    for _ in range(_NEWTON_STEPS):
        rate = _rate_from_log_odds(mode)
        slope = solved - attempts * rate - (mode - expected) / variance
        step = slope / (attempts * rate * (1.0 - rate) + 1.0 / variance)
        mode += max(-1.0, min(1.0, step))
        if abs(step) < 1e-9:
            break
    rate = _rate_from_log_odds(mode)
    precision = max(1e-9, attempts * rate * (1.0 - rate))
    return mode + (solved - attempts * rate) / precision, 1.0 / precision


def _rate_from_log_odds(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, log_odds))))


def _expected_value(function: Callable[[float], float], mean: float, variance: float) -> float:
    """Returns the expected value of a function of a pass rate whose log-odds are normal."""
    width = math.sqrt(variance)
    pairs = zip(_NODES, _WEIGHTS, strict=True)
    return sum(weight * function(_rate_from_log_odds(mean + width * node)) for node, weight in pairs) / sum(_WEIGHTS)


def _bernoulli_variance(rate: float) -> float:
    return rate * (1.0 - rate)


class PassRates:
    """The pass rates of instances. What was seen of one counts half after `half_life_groups` groups."""

    def __init__(self, num_instances: int, half_life_groups: float) -> None:
        if half_life_groups <= 0:
            raise ValueError("what is known fades in a time above 0")
        self._size = num_instances
        self._half_life_groups = half_life_groups
        self._known = _KnownRate()
        self._skipped = [0] * num_instances
        # Its keys are the groups' numbers.
        self._noted: dict[int, GroupResult] = {}
        # This has what is noted; None: it is to be computed.
        self._present: _KnownRate | None = None
        # This is the largest information of any instance; None: it is to be computed.
        self._largest: float | None = None

    def mean(self, index: int) -> float:
        """Returns the expected pass rate, in [0, 1]."""
        return _expected_value(float, *self._now().log_odds(index))

    def information(self, index: int) -> float:
        """Returns E[p (1 - p)], in (0, 0.25)."""
        return _expected_value(_bernoulli_variance, *self._now().log_odds(index))

    def admits(self, index: int, generator: random.Random) -> bool:
        """Tells whether a group of this instance shall begin. Its draw is taken from `generator` in any case."""
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
        """Notes a complete group, which will be observed when it is trained."""
        self._noted[number] = result
        self._present = self._largest = None

    def observe(self, results: Sequence[GroupResult], numbers: Sequence[int] = ()) -> dict[str, float | int | None]:
        """Takes a step's groups in, and returns how well they were foreseen, which is its part of the record.

        `numbers` are those of groups that were noted before. Each is compared with what was known before this step. Of
        an instance that was never seen nothing was known.
        """
        for number in numbers:
            self._noted.pop(number, None)
        self._present = self._largest = None
        foreseen = self._foreseen(results)
        fades = 0.5 ** (len(results) / self._half_life_groups)
        self._known = self._known.later(fades).after(_attempted_groups(results))
        return foreseen

    def _foreseen(self, results: Sequence[GroupResult]) -> dict[str, float | int | None]:
        pairs = [
            (_expected_value(float, *self._known.log_odds(result.index)), result.solved / result.attempts)
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

    def _now(self) -> _KnownRate:
        if self._present is None:
            self._present = self._known.after(_attempted_groups(result for _, result in sorted(self._noted.items())))
        return self._present

    def state(self) -> PassRatesState:
        return PassRatesState(
            skipped=[(index, times) for index, times in enumerate(self._skipped) if times],
            mean=(self._known.mean, self._known.variance),
            deviations=[(index, *pair) for index, pair in sorted(self._known.deviations.items())],
        )

    def restore(self, state: PassRatesState) -> None:
        """Restores a state, also one of older versions, whose counts are taken as one group of each instance."""
        self._known = _KnownRate()
        self._skipped = [0] * self._size
        self._noted = {}
        self._present = self._largest = None
        for index, times in state["skipped"]:
            self._skipped[index] = times
        if "mean" in state:
            self._known = _KnownRate(
                *state["mean"], {index: (value, spread) for index, value, spread in state["deviations"]}
            )
        else:
            counts = state.get("counts", [])
            self._known = self._known.after((index, solved, solved + failed) for index, solved, failed in counts)


def _attempted_groups(results: Iterable[GroupResult]) -> list[tuple[int, float, float]]:
    return [(result.index, result.solved, result.attempts) for result in results if result.attempts]
