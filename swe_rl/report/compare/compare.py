"""Puts arms side by side: which steps they share, and what these say of each arm against the baseline.

Invariants:
- It is pure: what was measured goes in, numbers come out; files are read and written elsewhere.
- Only complete steps are here. A step that one side alone has belongs to no pair.
- Repeats of an arm pair with the repeats of the same name of the other arm, step by step; intervals of a difference are
  over pairs of repeats.
- Held-out rates are compared by `held_out.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from swe_rl.logger.folder import RunState
from swe_rl.report.compare.held_out import HeldOut, HeldOutPair, compare_held_out
from swe_rl.report.resolved import Resolved
from swe_rl.report.statistics import Paired, pair_runs

# This is the repeat's name, '' for an arm of one run, and the step.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StepRate:
    """The figures of one complete step. `tokens_per_s` counts all tokens of the responses, those of tools included.

    It is None where the time that they took is not known.
    """

    tokens_per_s: float | None
    reward_mean: float | None = None
    avg_response_length: float | None = None
    generate_s: float | None = None
    step_s: float | None = None
    loss: float | None = None

    def says(self, value: "Callable[[StepRate], float | None]") -> bool:
        """Tells whether it has that number, or would have to."""
        return self.tokens_per_s is not None or value(self) is not None


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """What a run measured of one part of its mix."""

    held_out: HeldOut | None
    evaluations: Mapping[int, Resolved]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run or a log. `num_trajectories` is that of every step, None where steps differ in it."""

    source: str
    steps: Mapping[int, StepRate]
    is_log: bool = False
    # This is SLURM's job.
    job: str | None = None
    incomplete: int = 0
    num_trajectories: int | None = None
    wall_s: float | None = None
    held_out: HeldOut | None = None
    # These are all evaluations of that split, by the step after which they were made.
    evaluations: Mapping[int, Resolved] = field(default_factory=dict)
    # These are of the parts of a mix, by their names.
    parts: Mapping[str, MeasuredPart] = field(default_factory=dict)
    status: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    # This is its configuration.
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Tells whether the run did all that it was to do. A log has no status."""
        return self.status in (None, RunState.done)

    def evaluations_of(self, part: str) -> Mapping[int, Resolved]:
        """Returns its evaluations by step: of a part of its mix, or with an empty name of all."""
        if not part:
            return self.evaluations
        if part in self.parts:
            return self.parts[part].evaluations
        return {}

    def mean(self, value: Callable[[StepRate], float | None]) -> float | None:
        """Returns the mean over its steps; None where a step lacks it that has a rate, or there is none."""
        return _complete_mean([value(rate) for rate in self.steps.values() if rate.says(value)])

    def value(self, key: str) -> Any:
        """Returns a leaf of its configuration by its dotted name, for a group its option's name; None if it is not
        there.
        """
        node: Any = self.values
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            return node.get("name")
        return node


@dataclass(frozen=True, slots=True)
class Arm:
    """The runs of an arm by the names of their repeats. `short` stands for it where its role is meant."""

    label: str
    short: str
    runs: Mapping[str, MeasuredRun]

    def rates(self) -> dict[Key, StepRate]:
        """Returns the rates repeat by repeat, steps ascending."""
        return {(name, step): run.steps[step] for name, run in self.runs.items() for step in sorted(run.steps)}

    def average(self) -> float | None:
        """Returns tokens/s over all its complete steps."""
        rates = _known_speeds(self.rates().values())
        if rates:
            return fmean(rates)
        return None

    def spread(self) -> float | None:
        """Returns the standard deviation of the repeats' averages; None for fewer than two."""
        averages = [fmean(rates) for run in self.runs.values() if (rates := _known_speeds(run.steps.values()))]
        if len(averages) > 1:
            return stdev(averages)
        return None

    def wall_s(self) -> float | None:
        """Returns the mean over its runs, None where one does not know its own."""
        return _complete_mean([run.wall_s for run in self.runs.values()])


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate against the baseline over `keys`, the steps that both have; `tokens` is of those with two rates."""

    baseline: Arm
    candidate: Arm
    keys: tuple[Key, ...]
    tokens: Paired | None
    gain: HeldOutPair | None = None
    held_out: HeldOutPair | None = None
    # These are the gains and rates of each part of a mix that both arms have.
    parts: Mapping[str, tuple[HeldOutPair | None, HeldOutPair | None]] = field(default_factory=dict)

    def means(self, value: Callable[[StepRate], float | None]) -> tuple[float, float] | None:
        """Returns both sides' means of a number over the paired steps.

        It is None where a step of either side lacks it that has a rate.
        """
        sides = self.baseline.rates(), self.candidate.rates()
        keys = [key for key in self.keys if all(rates[key].says(value) for rates in sides)]
        before, after = (_complete_mean([value(rates[key]) for key in keys]) for rates in sides)
        if before is not None and after is not None:
            return (before, after)
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison. `arms[0]` is the baseline; `pairs` has one entry for each other arm, in order."""

    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    # It is there where all arms have as many.
    engines: int | None = None
    # This folder held them all.
    source: str | None = None
    # These runs of that folder have files which no run writes; each has its reason.
    damaged: tuple[str, ...] = ()

    def has_steps(self) -> bool:
        return any(run.steps for arm in self.arms for run in arm.runs.values())

    def has_evaluations(self) -> bool:
        return any(run.held_out for arm in self.arms for run in arm.runs.values())

    def step_keys(self) -> list[Key]:
        """Returns steps that any arm has: repeats in the order of the arms, steps ascending."""
        names = dict.fromkeys(name for arm in self.arms for name in arm.runs)
        rank = {name: index for index, name in enumerate(names)}
        return sorted({key for arm in self.arms for key in arm.rates()}, key=lambda key: (rank[key[0]], key[1]))


def compare_arms(arms: Sequence[Arm], *, engines: int | None = None, source: str | None = None) -> Comparison:
    """Returns each arm against the first."""
    return Comparison(tuple(arms), tuple(pair_arms(arms[0], arm) for arm in arms[1:]), engines, source)


def pair_arms(baseline: Arm, candidate: Arm) -> Pair:
    before = baseline.rates()
    after = candidate.rates()
    keys = tuple(key for key in before if key in after)
    timed = [key for key in keys if len(_known_speeds((before[key], after[key]))) == 2]
    runs = [[key for key in timed if key[0] == name] for name in dict.fromkeys(name for name, _ in timed)]
    sides = ([_known_speeds(rates[key] for key in run) for run in runs] for rates in (before, after))
    gain, held_out = _pair_evaluations(baseline, candidate, lambda run: run.held_out)
    parts = {
        part: _pair_evaluations(baseline, candidate, lambda run, part=part: _held_out_part(run, part))  # type: ignore[misc]
        for part in parts_of_arms([baseline, candidate])
    }
    return Pair(baseline, candidate, keys, pair_runs(*sides), gain, held_out, parts)


def _pair_evaluations(
    baseline: Arm, candidate: Arm, held_out_of: Callable[[MeasuredRun], HeldOut | None]
) -> tuple[HeldOutPair | None, HeldOutPair | None]:
    """Returns gains and rates of the runs of two arms that have the same names."""
    return compare_held_out(
        [
            (before, after, run.is_over and other.is_over)
            for name, run in baseline.runs.items()
            if (other := candidate.runs.get(name))
            and (before := held_out_of(run)) is not None
            and (after := held_out_of(other)) is not None
        ]
    )


def _held_out_part(run: MeasuredRun, part: str) -> HeldOut | None:
    """Returns a run's evaluations of a part; of a run without parts all, of which those of the part are compared."""
    if run.parts:
        return run.parts[part].held_out if part in run.parts else None
    return run.held_out


def parts_of_arms(arms: Sequence[Arm]) -> list[str]:
    """Returns the names of the parts that any run of the arms has."""
    return sorted({part for arm in arms for run in arm.runs.values() for part in run.parts})


def _known_speeds(rates: Iterable[StepRate]) -> list[float]:
    return [rate.tokens_per_s for rate in rates if rate.tokens_per_s is not None]


def _complete_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if known and len(known) == len(values):
        return fmean(known)
    return None
