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
    found = [one for before, after in both if (one := change(before, after)) is not None]
    if not found:
        return HeldOutPair(0, 0, unpaired, None, None, None)
    interval: Interval | None = (100 * found[0].low, 100 * found[0].high)
    if len(found) > 1:
        interval = mean_interval([100 * one.delta for one in found])
    rates = [100 * fmean(values) for values in ([one.before for one in found], [one.after for one in found])]
    return HeldOutPair(len(found), sum(one.num_instances for one in found), unpaired, rates[0], rates[1], interval)


def run_lines(name: str, one: HeldOut) -> Iterator[str]:
    over = one.part or (f"{one.latest.num_instances} instances" if one.latest.num_instances else "")
    rates = " -> ".join(f"{100 * it.rate:.1f}% ({span(it.low, it.high)})" for it in (one.before, one.after) if it)
    yield f"- {name} {one.split}: {rates}{f', {over}' if over else ''}"
    if one.gain is not None:
        yield f"- {name} gain: {gain_text(one.gain)}"


def gain_text(found: Change) -> str:
    within = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return f"{100 * found.delta:+.1f} points ({within}), paired over {found.num_instances} instances"


def pair_line(found: HeldOutPair) -> str:
    only = f", {found.unpaired} not shared" if found.unpaired else ""
    if found.baseline is None or found.candidate is None:
        return f"- held-out: no instance was evaluated on both sides{only}"
    within = f"{found.interval[0]:+.1f} to {found.interval[1]:+.1f}" if found.interval else "N/A"
    over = "over the pairs of runs" if found.runs > 1 else "over the instances of these runs"
    return (
        f"- held-out (paired, {found.instances} instances{only}): {found.baseline:.1f} vs {found.candidate:.1f} %, "
        f"delta {found.candidate - found.baseline:+.1f} points (95 %: {within}, {over})"
    )


def held_out_record(one: HeldOut) -> dict[str, Any]:
    """For `compare.json`: shares, not per cent."""
    return {key: value for key, value in asdict(one).items() if key != "counts"}
