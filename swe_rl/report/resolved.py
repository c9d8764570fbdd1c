"""Gives resolved rates with 95 % intervals over instances, and what changed between two, as every output shows them.

Invariants:
- Rates and intervals are made of the counts of an `eval` event alone, here and nowhere else.
- A rate counts the attempts that infrastructure did not break; a difference is over the instances that both sides have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.files.tables import as_mapping
from swe_rl.logger.progress_text import format_span
from swe_rl.logger.summary import before_and_after
from swe_rl.report.statistics import clustered_interval, difference_of_values, paired_interval, wilson_interval

Record = Mapping[str, Any]
# An instance has resolved attempts and valid attempts.
Counts = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolved rate in [0, 1]. `num_instances` have a valid attempt, None where an older event does not say."""

    rate: float
    low: float
    high: float
    num_samples: int
    num_instances: int | None


@dataclass(frozen=True, slots=True)
class RateChange:
    """The rate after less the rate before, over the `num_instances` that both have; `unpaired` a side lacks.

    For the gains of two runs it is the second less the first, over what all evaluations of both have.
    """

    before: float
    after: float
    low: float
    high: float
    num_instances: int
    unpaired: int

    @property
    def delta(self) -> float:
        return self.after - self.before


def counts_of(event: Record) -> dict[str, tuple[int, int]]:
    """Returns an `eval` event's counts; instances without a valid attempt, and events of older versions, have none."""
    return {name: pair for name, pair in pairs_of(event).items() if pair[1] > 0}


def pairs_of(event: Record) -> dict[str, tuple[int, int]]:
    """Returns what `counts_of` does, with instances that have no valid attempt."""
    table = event.get("by_instance")
    pairs = as_mapping(table).items()
    return {str(name): (int(pair[0]), int(pair[1])) for name, pair in pairs if _is_pair(pair)}


def resolved_rate(event: Record) -> Resolved | None:
    """Returns an `eval` event's rate; None where it measured nothing."""
    if counts := counts_of(event):
        return of_counts(counts)
    rate = event.get("resolved_rate")
    samples = event.get("num_samples")
    if not isinstance(rate, int | float) or rate != rate or not is_int(samples) or not samples:
        return None
    interval = wilson_interval(round(rate * samples), samples)
    if interval:
        return Resolved(rate, *interval, samples, None)
    return None


def of_counts(counts: Counts) -> Resolved | None:
    interval = clustered_interval(list(counts.values()))
    if interval is None:
        return None
    total, samples = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    return Resolved(total / samples, *interval, samples, len(counts))


def change_in_rate(*counts: Counts) -> RateChange | None:
    """Returns before and after; of four, from what the first two differ by to what the last two do.

    It is None where no instance is on all sides.
    """
    shared = [name for name in counts[0] if all(name in side for side in counts)]
    sides = [[side[name] for name in shared] for side in counts]
    interval = paired_interval(*sides)
    if interval is None:
        return None
    rates = [sum(solved for solved, _ in side) / sum(samples for _, samples in side) for side in sides]
    if len(rates) == 2:
        ends = rates
    else:
        ends = [difference_of_values(rates[:2]), difference_of_values(rates[2:])]
    return RateChange(ends[0], ends[1], *interval, len(shared), len(set().union(*counts)) - len(shared))


def gain_of_run(evals: Sequence[Record]) -> RateChange | None:
    """Returns a run's latest evaluation against its first; None without two."""
    before, after = before_and_after(evals)
    return change_in_rate(counts_of(before), counts_of(after))


def evals_by_part(evals: Sequence[Record]) -> dict[str, list[Record]]:
    """Returns the evaluations of each part of a mix, as if it had been evaluated alone; nothing without a mix."""
    by_part: dict[str, list[Record]] = {}
    for event in evals:
        table = as_mapping(event.get("by_instance"))
        for name, numbers in as_mapping(event.get("parts")).items():
            figures = as_mapping(numbers)
            names = figures.get("instances")
            counts = {key: table[key] for key in names if key in table} if isinstance(names, Sequence) else {}
            rest = {"step": event.get("step"), "split": event.get("split"), "by_instance": counts}
            by_part.setdefault(str(name), []).append({**figures, **rest})
    return by_part


def part_lines(evals: Sequence[Record]) -> list[str]:
    """Returns a line on each part of a mix: what it resolved, and what it gained since the first evaluation."""
    lines = []
    for name, events in evals_by_part(evals).items():
        before, after = before_and_after(events)
        measured = resolved_rate(after or before)
        if measured is None:
            continue
        line = f"{name}: {100 * measured.rate:.1f} % of {measured.num_samples} samples resolved"
        gain = gain_of_run(events)
        if gain is not None:
            ends = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
            line = f"{line}, {100 * gain.delta:+.1f} points since the first evaluation (95 %: {ends})"
        lines.append(line)
    return lines


def describe_split(event: Record) -> str:
    """Returns what was evaluated: the split's name, and `(100 of 500 instances)` where that was a part of it."""
    part = part_of(event.get("num_instances"), event.get("split_instances"))
    return f"{event.get('split')}{f' ({part})' if part else ''}"


def part_of(instances: Any, whole: Any) -> str:
    """Returns `100 of 500 instances`; nothing where the whole split was evaluated, or nobody knows."""
    known = is_int(instances) and is_int(whole)
    if known and instances < whole:
        return f"{instances:,} of {whole:,} instances"
    return ""


def summary_of(evals: Sequence[Record]) -> dict[str, Any]:
    """Returns the intervals of `summary.json`, by its keys; null where there is nothing to measure."""
    fields: dict[str, Any] = {}
    for name, event in zip(("before", "after"), before_and_after(evals), strict=True):
        result = resolved_rate(event)
        fields |= {f"resolved_low_{name}": result and result.low, f"resolved_high_{name}": result and result.high}
        fields[f"resolved_instances_{name}"] = result and result.num_instances
    both = gain_of_run(evals)
    fields |= {"resolved_gain": both and both.delta, "resolved_gain_instances": both and both.num_instances}
    fields |= {"resolved_gain_low": both and both.low, "resolved_gain_high": both and both.high}
    if by_part := evals_by_part(evals):
        fields["parts"] = {name: _summary_of_part(events) for name, events in by_part.items()}
    first = before_and_after(evals)[0]
    return fields | {"eval_instances": first.get("num_instances"), "eval_split_instances": first.get("split_instances")}


def _summary_of_part(evals: Sequence[Record]) -> dict[str, Any]:
    """Returns the rates and the gain of one part, with intervals, by the keys that the whole run has."""
    before, after = before_and_after(evals)
    rates = {"resolved_rate_before": before.get("resolved_rate"), "resolved_rate_after": after.get("resolved_rate")}
    whole = summary_of(evals)
    return rates | {key: value for key, value in whole.items() if not key.startswith("eval_")}


def line_of(event: Record) -> tuple[float | None, int, tuple[float, float] | None, float | None]:
    """Returns rate, samples, interval and the share of cut replies, as the line of an evaluation says them."""
    measured = resolved_rate(event)
    cut_reply_rate = event.get("cut_reply_rate")
    if measured is None:
        return None, 0, None, cut_reply_rate
    return measured.rate, measured.num_samples, (measured.low, measured.high), cut_reply_rate


def intervals_line(summary: Record) -> str:
    """Returns a line on `summary.json` for the terminal; nothing without two evaluations of the same instances."""
    values: list[Any] = [
        summary.get(f"resolved_{end}_{when}") for when in ("before", "after") for end in ("low", "high")
    ]
    values += [summary.get(f"resolved_gain_{end}") for end in ("low", "high")]
    if not all(isinstance(value, float) for value in values):
        return ""
    before = format_span(*values[:2])
    after = format_span(*values[2:4])
    low, high = (f"{100 * value:+.1f}" for value in values[4:])
    part = part_of(summary.get("eval_instances"), summary.get("eval_split_instances"))
    over = part or f"{summary.get('resolved_gain_instances')} instances"
    return f"95 % intervals: {before} -> {after} %, gain {low} to {high}, {over}"


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_int, pair))


def is_int(value: Any) -> bool:
    """Tells whether a value is an integer; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool)
