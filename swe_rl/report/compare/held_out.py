"""Held-out evaluations of runs side by side: each run's rates and gain, and two arms on the instances that both have.

Invariants:
- A rate, a gain and their intervals are those of `report/resolved`, as on a run's page and in its `summary.json`.
- With one run a side the interval is over the instances, which says nothing of another training; with several it is
  over pairs of runs.
- Two arms are compared by the latest evaluation of each run; instances of one side alone are counted and left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from swe_rl.logger.progress_text import span
from swe_rl.logger.summary import before_and_after
from swe_rl.report.resolved import Change, Resolved, change, counts_of, gain, part_of, resolved
from swe_rl.report.statistics import Interval, mean_interval

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A run's evaluations: the first, and the latest where there is another; `counts` are those of the latest."""

    split: str
    part: str  # `100 of 500 instances`; empty for a whole split
    before: Resolved
    after: Resolved | None
    gain: Change | None
    counts: Mapping[str, tuple[int, int]]

    @property
    def latest(self) -> Resolved:
        return self.after or self.before


@dataclass(frozen=True, slots=True)
class HeldOutPair:
    """Two arms by the latest evaluations of their runs; rates in per cent, the interval in points."""

    runs: int
    instances: int  # that both have, of all pairs of runs
    unpaired: int  # that one side alone has
    baseline: float | None  # None where they share no instance
    candidate: float | None
    interval: Interval | None


def held_out(evals: Sequence[Record]) -> HeldOut | None:
    """Of a run's `eval` events; None where nothing was measured."""
    first, last = before_and_after(evals)
    before, after = resolved(first), resolved(last)
    if before is None:
        return None
    latest = last if after else first
    part = part_of(latest.get("num_instances"), latest.get("split_instances"))
    return HeldOut(str(latest.get("split")), part, before, after, gain(evals), counts_of(latest))


def held_out_pair(pairs: Sequence[tuple[HeldOut | None, HeldOut | None]]) -> HeldOutPair | None:
    """Of runs that belong together, the baseline's first; None where no pair was evaluated on both sides."""
    both = [(before.counts, after.counts) for before, after in pairs if before is not None and after is not None]
    if not both:
        return None
    unpaired = sum(len(before.keys() ^ after.keys()) for before, after in both)
    diffs = [diff for before, after in both if (diff := change(before, after)) is not None]
    if not diffs:
        return HeldOutPair(0, 0, unpaired, None, None, None)
    interval: Interval | None = (100 * diffs[0].low, 100 * diffs[0].high)
    if len(diffs) > 1:
        interval = mean_interval([100 * diff.delta for diff in diffs])
    rates = [100 * fmean(values) for values in ([diff.before for diff in diffs], [diff.after for diff in diffs])]
    return HeldOutPair(len(diffs), sum(diff.num_instances for diff in diffs), unpaired, rates[0], rates[1], interval)


def run_lines(name: str, run: HeldOut) -> Iterator[str]:
    over = run.part or (f"{run.latest.num_instances} instances" if run.latest.num_instances else "")
    rates = " -> ".join(f"{100 * it.rate:.1f}% ({span(it.low, it.high)})" for it in (run.before, run.after) if it)
    yield f"- {name} {run.split}: {rates}{f', {over}' if over else ''}"
    if run.gain is not None:
        yield f"- {name} gain: {gain_text(run.gain)}"


def gain_text(gain: Change) -> str:
    within = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
    return f"{100 * gain.delta:+.1f} points ({within}), paired over {gain.num_instances} instances"


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
    """For `compare.json`: shares, not per cent."""
    return {key: value for key, value in asdict(run).items() if key != "counts"}
