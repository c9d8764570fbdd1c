"""Puts arms side by side: which steps they share, and what these say of each arm against the baseline.

Invariants:
- It is pure: what was measured goes in, numbers come out; files are read and written elsewhere.
- Only complete steps are here. A step that one side alone has belongs to no pair.
- Repeats of an arm pair with the repeats of the same name of the other arm, step by step; intervals of a difference are
  over pairs of repeats.
- A held-out rate, a gain and their intervals are those of `report/resolved`. With one run a side the interval is over
  the instances, which says nothing of another training; with several it is over pairs of runs. Two arms are compared by
  the latest evaluation of each run; instances of one side alone are counted and left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from swe_rl.logger.summary import before_and_after
from swe_rl.report.resolved import (
    Counts,
    RateChange,
    Resolved,
    change_in_rate,
    counts_of,
    gain_of_run,
    part_of,
    resolved_rate,
)
from swe_rl.report.statistics import Interval, Paired, mean_interval, pair_runs

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A run's evaluations: the first, and the latest where there is another; `counts` are of the same."""

    split: str
    # It is `100 of 500 instances`, or empty for a whole split.
    part: str
    before: Resolved
    after: Resolved | None
    gain: RateChange | None
    counts: tuple[Counts, ...]

    @property
    def latest(self) -> Resolved:
        return self.after or self.before


@dataclass(frozen=True, slots=True)
class HeldOutPair:
    """The pair of two arms by the latest evaluations of their runs, or by their gains; in per cent or points."""

    runs: int
    # All compared evaluations have these, of all pairs of runs.
    instances: int
    # One of them lacks these.
    unpaired: int
    # None stands for no shared instance.
    baseline: float | None
    candidate: float | None
    # It is that of the difference: over pairs of runs, or over the instances of the only one.
    interval: Interval | None


def held_out(evals: Sequence[Record]) -> HeldOut | None:
    """Returns a run's evaluations, from its `eval` events; None where nothing was measured."""
    first, last = before_and_after(evals)
    before = resolved_rate(first)
    after = resolved_rate(last)
    if before is None:
        return None
    latest = last if after else first
    part = part_of(latest.get("num_instances"), latest.get("split_instances"))
    counts = tuple(counts_of(event) for event in ((first, last) if after else (first,)))
    return HeldOut(str(latest.get("split")), part, before, after, gain_of_run(evals), counts)


def held_out_pair(pairs: Sequence[tuple[Counts, ...]]) -> HeldOutPair | None:
    """Returns the pair of evaluations that belong together, the baseline's first; None without any.

    There are two, or for gains the first and the latest of either side.
    """
    if not pairs:
        return None
    unpaired = sum(len(set().union(*counts)) - len(set(counts[0]).intersection(*counts[1:])) for counts in pairs)
    diffs = [diff for counts in pairs if (diff := change_in_rate(*counts)) is not None]
    if not diffs:
        return HeldOutPair(0, 0, unpaired, None, None, None)
    interval: Interval | None = (100 * diffs[0].low, 100 * diffs[0].high)
    if len(diffs) > 1:
        interval = mean_interval([100 * diff.delta for diff in diffs])
    rates = [100 * fmean(values) for values in ([diff.before for diff in diffs], [diff.after for diff in diffs])]
    return HeldOutPair(len(diffs), sum(diff.num_instances for diff in diffs), unpaired, rates[0], rates[1], interval)


def pair_line(pair: HeldOutPair) -> str:
    only = f", {pair.unpaired} not shared" if pair.unpaired else ""
    if pair.baseline is None or pair.candidate is None:
        return f"- held-out: no instance was evaluated on both sides{only}"
    within = f"{pair.interval[0]:+.1f} to {pair.interval[1]:+.1f}" if pair.interval else "N/A"
    over = "over the pairs of runs" if pair.runs > 1 else "over the instances of these runs"
    return (
        f"- held-out (paired, {pair.instances} instances{only}): {pair.baseline:.1f} vs {pair.candidate:.1f} %, "
        f"delta {pair.candidate - pair.baseline:+.1f} points (95 %: {within}, {over})"
    )


def held_out_record(run: HeldOut) -> dict[str, Any]:
    """Returns the record for `compare.json`: shares, not per cent."""
    return {key: value for key, value in asdict(run).items() if key != "counts"}


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
    status: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    # This is its configuration.
    values: Mapping[str, Any] = field(default_factory=dict)

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
    names = [name for name in baseline.runs if name in candidate.runs]
    runs_of = [(baseline.runs[name].held_out, candidate.runs[name].held_out) for name in names]
    both = [(before.counts, after.counts) for before, after in runs_of if before and after]
    gain = held_out_pair([(*before, *after) for before, after in both if len(before) == len(after) == 2])
    held_out = held_out_pair([(before[-1], after[-1]) for before, after in both])
    return Pair(baseline, candidate, keys, pair_runs(*sides), gain if gain and gain.runs else None, held_out)


def _known_speeds(rates: Iterable[StepRate]) -> list[float]:
    return [rate.tokens_per_s for rate in rates if rate.tokens_per_s is not None]


def _complete_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if known and len(known) == len(values):
        return fmean(known)
    return None
