"""Compares the held-out rates and gains of runs that belong together.

Invariants:
- A held-out rate, a gain and their intervals are those of `report/resolved`. With one run a side the interval is over
  the instances, which says nothing of another training; with several it is over pairs of runs.
- Instances of one side alone are counted and left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from swe_rl.logger.summary import before_and_after
from swe_rl.report.resolved import (
    Counts,
    RateChange,
    Resolved,
    change_in_rate,
    counts_of,
    gain_of_run,
    is_int,
    part_of,
    resolved_rate,
)
from swe_rl.report.statistics import Interval, mean_interval

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A run's evaluations: the first, and the latest where there is another. `counts` has all, by their steps."""

    split: str
    # It is `100 of 500 instances`, or empty for a whole split.
    part: str
    before: Resolved
    after: Resolved | None
    gain: RateChange | None
    counts: Mapping[int, Counts]

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
    # It is that of the difference: over pairs of runs, or over the instances of the only one. None stands for pairs of
    # runs that all differ by as much.
    interval: Interval | None
    # These are the steps that were compared if a run is not over; empty where each run's latest evaluation was.
    steps: tuple[int, ...] = ()


def held_out(evals: Sequence[Record]) -> HeldOut | None:
    """Returns a run's evaluations, from its `eval` events; None where nothing was measured."""
    first, last = before_and_after(evals)
    before = resolved_rate(first)
    after = resolved_rate(last)
    if before is None:
        return None
    latest = last if after else first
    part = part_of(latest.get("num_instances"), latest.get("split_instances"))
    return HeldOut(str(latest.get("split")), part, before, after, gain_of_run(evals), _counts_by_step(evals))


def _evaluations_of_split(evals: Sequence[Record]) -> dict[int, Record]:
    """Returns the evaluations of the split that was evaluated first, by their steps, ascending."""
    split = before_and_after(evals)[0].get("split")
    ours = {event["step"]: event for event in evals if event.get("split") == split and is_int(event.get("step"))}
    return dict(sorted(ours.items()))


def _counts_by_step(evals: Sequence[Record]) -> dict[int, Counts]:
    measured = {step: event for step, event in _evaluations_of_split(evals).items() if resolved_rate(event)}
    return {step: counts_of(event) for step, event in measured.items()}


def evaluations_by_step(evals: Sequence[Record]) -> dict[int, Resolved]:
    """Returns the rate of each evaluation of the split that was evaluated first, by its step."""
    rates = {step: resolved_rate(event) for step, event in _evaluations_of_split(evals).items()}
    return {step: rate for step, rate in rates.items() if rate is not None}


def compare_held_out(
    runs: Sequence[tuple[HeldOut, HeldOut, bool]],
) -> tuple[HeldOutPair | None, HeldOutPair | None]:
    """Returns the pairs of gains and of rates, for runs that belong together, each with whether both are over.

    Runs that are over are compared by what came of them: by the latest evaluation of each. A run that is not over has
    had less training by then than one that is. So it is compared at the last step that both evaluated. Gains are of
    runs whose first evaluations are of one step: a gain since a later one lacks what was learned before it.
    """
    gains: list[tuple[Counts, ...]] = []
    rates: list[tuple[Counts, ...]] = []
    steps: set[int] = set()
    for before, after, are_over in runs:
        sides = [before.counts, after.counts]
        if not are_over:
            common = before.counts.keys() & after.counts.keys()
            last = max(common, default=-1)
            sides = [{step: counts for step, counts in side.items() if step <= last} for side in sides]
        ordered = [[*side.values()] for side in sides]
        is_gained = all(len(side) > 1 for side in ordered) and min(sides[0]) == min(sides[1])
        if is_gained:
            gains.append(tuple(side[place] for side in ordered for place in (0, -1)))
        if all(ordered):
            rates.append((ordered[0][-1], ordered[1][-1]))
            steps |= {max(side) for side in sides}
    all_over = all(are_over for _, _, are_over in runs)
    compared_steps = () if all_over else tuple(sorted(steps))
    gain = pair_held_out(gains, compared_steps)
    if gain and not gain.runs:
        gain = None
    return gain, pair_held_out(rates, compared_steps)


def pair_held_out(pairs: Sequence[tuple[Counts, ...]], steps: tuple[int, ...] = ()) -> HeldOutPair | None:
    """Returns the pair of evaluations that belong together, the baseline's first; None without any.

    There are two, or for gains the first and the compared one of either side.
    """
    if not pairs:
        return None
    # Repeats of a run evaluate the same instances, which count once.
    shared = {name for counts in pairs for name in set(counts[0]).intersection(*counts[1:])}
    unpaired = len({name for counts in pairs for side in counts for name in side} - shared)
    diffs = [diff for counts in pairs if (diff := change_in_rate(*counts)) is not None]
    if not diffs:
        return HeldOutPair(0, 0, unpaired, None, None, None, steps)
    interval: Interval | None = (100 * diffs[0].low, 100 * diffs[0].high)
    if len(diffs) > 1:
        interval = mean_interval([100 * diff.delta for diff in diffs])
    rates = [100 * fmean(values) for values in ([diff.before for diff in diffs], [diff.after for diff in diffs])]
    return HeldOutPair(len(diffs), len(shared), unpaired, rates[0], rates[1], interval, steps)


def pair_line(pair: HeldOutPair, part: str = "") -> str:
    """Returns how the held-out rates of two arms differ, as a line; of a part of a mix with its name."""
    what = f"held-out {part}".strip()
    if pair.baseline is None or pair.candidate is None:
        return f"- {what}: no instance was evaluated on both sides{_left_out_text(pair)}"
    return (
        f"- {what} ({_compared_text(pair)}): {pair.baseline:.1f} vs {pair.candidate:.1f} %, "
        f"delta {pair.candidate - pair.baseline:+.1f} points ({_certainty_text(pair)})"
    )


def gain_line(pair: HeldOutPair, part: str = "") -> str:
    """Returns how the gains of two arms differ, as a line. `pair` is one that has shared instances."""
    what = f"held-out {part}".strip()
    baseline = pair.baseline or 0.0
    candidate = pair.candidate or 0.0
    return (
        f"- {what} gain ({_compared_text(pair)}): {baseline:+.1f} vs {candidate:+.1f} points, "
        f"delta {candidate - baseline:+.1f} ({_certainty_text(pair)})"
    )


def _compared_text(pair: HeldOutPair) -> str:
    """Returns what was compared: over which instances, and after which step where a run is not over."""
    text = f"paired, {pair.instances} instances{_left_out_text(pair)}"
    if len(pair.steps) == 1:
        return f"{text}, both after step {pair.steps[0]}"
    if pair.steps:
        return f"{text}, each pair of runs that are not both over after the last step that both evaluated"
    return text


def _left_out_text(pair: HeldOutPair) -> str:
    if pair.unpaired:
        return f", {pair.unpaired} not shared"
    return ""


def _certainty_text(pair: HeldOutPair) -> str:
    if pair.interval is None:
        return "no interval: all pairs of runs differ by as much, which says nothing of other runs"
    over = "over the instances of these runs"
    if pair.runs > 1:
        over = "over the pairs of runs"
    return f"95 %: {pair.interval[0]:+.1f} to {pair.interval[1]:+.1f}, {over}"


def held_out_record(run: HeldOut) -> dict[str, Any]:
    """Returns the record for `compare.json`: shares, not per cent."""
    return {key: value for key, value in asdict(run).items() if key != "counts"}
