"""Draws together what the runs of an arm learned: reward by step, and the held-out rate by evaluation.

Invariants:
- It is pure, as `compare.py` is: runs go in, points come out.
- A point is the mean over the arm's runs that have this step. Its interval is over these runs, the unit that another
  seed draws anew. With one run an evaluation has its interval over instances, which says nothing of another training,
  and a reward has none.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from swe_rl.config.choices import CompareFigures
from swe_rl.report.compare.compare import Arm, Comparison, MeasuredRun
from swe_rl.report.statistics import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """A mean over `runs` runs at one step, with its 95 % interval."""

    mean: float
    runs: int
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """An arm's curve by step."""

    arm: Arm
    points: Mapping[int, LearningPoint]

    @property
    def is_over_runs(self) -> bool:
        """Tells whether any interval is over several runs."""
        return any(point.runs > 1 for point in self.points.values())


def shows_learning(made: Comparison, wanted: CompareFigures) -> bool:
    """Tells whether a comparison is about learning: as was asked for, else as a run was told, else where a run trains.

    A sweep over routers trains, too, and says `job.figures=throughput` of its runs: speed is what it compares.
    """
    if wanted is not CompareFigures.auto:
        return wanted is CompareFigures.learning
    runs = [run for arm in made.arms for run in arm.runs.values()]
    chosen = {run.value("job.figures") for run in runs} - {None, CompareFigures.auto.value}
    if chosen:
        return CompareFigures.learning.value in chosen
    return any(run.value("job.name") == "train" for run in runs)


def held_out_curve(arm: Arm, part: str = "") -> LearningCurve:
    """Returns the arm's held-out resolved rates, as shares; with `part` those of this part of a mix."""
    points = _points_over_runs(arm, lambda run: {step: rate.rate for step, rate in run.evaluations_of(part).items()})
    points = {step: _within_shares(point) for step, point in points.items()}
    if len(arm.runs) == 1:
        [run] = arm.runs.values()
        points = {
            step: LearningPoint(rate.rate, 1, (rate.low, rate.high))
            for step, rate in sorted(run.evaluations_of(part).items())
        }
    return LearningCurve(arm, points)


def _within_shares(point: LearningPoint) -> LearningPoint:
    """Returns a point whose interval ends where a share does. That of two runs is often wider."""
    if point.interval is None:
        return point
    low, high = point.interval
    return replace(point, interval=(max(0.0, low), min(1.0, high)))


def reward_curve(arm: Arm) -> LearningCurve:
    """Returns the arm's mean rewards of the training's steps."""
    return LearningCurve(arm, _points_over_runs(arm, _rewards_of))


def _rewards_of(run: MeasuredRun) -> dict[int, float]:
    return {step: rate.reward_mean for step, rate in run.steps.items() if rate.reward_mean is not None}


def _points_over_runs(arm: Arm, figures_of: Callable[[MeasuredRun], Mapping[int, float]]) -> dict[int, LearningPoint]:
    by_step: dict[int, list[float]] = {}
    for run in arm.runs.values():
        for step, value in figures_of(run).items():
            by_step.setdefault(step, []).append(value)
    return {
        step: LearningPoint(fmean(values), len(values), mean_interval(values))
        for step, values in sorted(by_step.items())
    }


def learning_record(arm: Arm) -> dict[str, Any]:
    """Returns both curves for `compare.json`, in the order of steps; rates are shares."""
    curves = {"held_out": held_out_curve(arm), "reward": reward_curve(arm)}
    return {
        name: [{"step": step, **asdict(point)} for step, point in curve.points.items()]
        for name, curve in curves.items()
    }
