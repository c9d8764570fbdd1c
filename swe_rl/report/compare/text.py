"""A comparison as it is printed: what is compared, by which formula, the tables, and what the steps say together; and
for programs: one JSON object, and a CSV line for each arm, repeat and step.

Invariants:
- Two arms print in the layout of the published comparison, so that tools and eyes made for it read ours.
- An interval over the steps of one run a side is called `within this run`, never an interval of the difference.
- A run that is not over, or left steps incomplete, is named.
- In a table a column is as wide as its widest cell; the first to the left, the others to the right; one decimal.
- What is not known reads N/A; a difference is never taken from rounded numbers.
- For programs keys name their units; what is unknown is null in JSON and empty in CSV, and nothing is rounded.
- `delta_percent_interval` is over pairs of runs, null for one; `within_run_delta_percent_interval` is over the steps of
  the only pair, and says nothing about another one.
"""

import csv
import io
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from typing import Any

from swe_rl.logger.folder import RunState
from swe_rl.logger.progress_text import span
from swe_rl.report.compare.compare import (
    Arm,
    Comparison,
    HeldOut,
    HeldOutPair,
    Key,
    Measured,
    Pair,
    StepRate,
    held_out_record,
    pair,
    pair_line,
)
from swe_rl.report.statistics import LEVEL, RESAMPLES, SEED, Interval, Paired, percent

NOTHING = "N/A"
_BETWEEN = " | "
ONE_RUN = "one run"
_OVER_RUNS = "t-interval over the pairs of runs"
_REPEAT = "A --multirun with job.repeat=0,1,2,3 repeats the arms in turn."


def text(made: Comparison, room: int = sys.maxsize) -> str:
    """Of one arm or more, in `room` columns, without a newline at the end."""
    if not made.has_steps():  # evaluations alone
        lines = [_title(made), "", *_sources(made), "", *_held_out(made), *_notes(made), *runs_table(made, room)]
        return wrapped(lines, room)
    lines = [_title(made), "", *_sources(made), *_formulas(made.arms), ""]
    if len(made.arms) == 2:
        lines += [*pair_table(made, room), "", *_facts(made.pairs[0])]
    else:
        lines += [*arms_table(made, room), "", *steps_table(made, room), ""]
        lines.append(f"- 95 % of delta %: {_OVER_RUNS}; {ONE_RUN}: none. {_REPEAT}")
    return wrapped([*lines, *_held_out(made), *_notes(made), *runs_table(made, room)], room)


def wrapped(lines: Sequence[str], room: int) -> str:
    """A line of a table stays whole."""
    tidy = partial(textwrap.fill, width=room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if len(line) <= room or _BETWEEN in line else tidy(line) for line in lines)


def _title(made: Comparison) -> str:
    engines = f"DP={made.engines} " if made.engines and made.engines > 1 else ""
    what = "Rollout Tokens/sec Comparison" if made.has_steps() else "Held-out Comparison"
    names = f"{made.arms[0].label} vs {made.arms[1].label}" if len(made.arms) == 2 else made.source
    return f"# {engines}{what} ({names})"


def _held_out(made: Comparison) -> Iterator[str]:
    """Each arm's last evaluation against the baseline's."""
    for arms in made.pairs:
        if arms.held_out:
            yield pair_line(arms.held_out) + (f": {arms.candidate.short}" if len(made.pairs) > 1 else "")


_RUN = ("Run", "Held-out %", "95 %", "Gain", "95 %", "Reward", "Loss", "Length", "Step s", "Wall s")


def runs_table(made: Comparison, room: int) -> list[str]:
    """What came of each run: its latest evaluation, the gain paired over instances, means over its steps.

    A column that no run fills is left out; without an evaluation there is no table, for the others say the rest.
    """
    if not made.has_evaluations():
        return []
    rows = [_run_row(_name(arm, name), run) for arm, name, run in _runs(made)]
    kept = [index for index in range(len(_RUN)) if any(row[index] != NOTHING for row in rows)]
    splits = dict.fromkeys(_evaluated(run.held_out) for _, _, run in _runs(made) if run.held_out)
    said = f"Evaluated on {' and '.join(splits)}; gains are paired over instances."
    return [
        "",
        said,
        "",
        *table([_RUN[index] for index in kept], [[row[index] for index in kept] for row in rows], room),
    ]


def _evaluated(held_out: HeldOut) -> str:
    count = held_out.latest.num_instances
    over = held_out.part or (f"{count} instances" if count else "")
    return f"{held_out.split}{f', {over}' if over else ''}"


def _run_row(name: str, run: Measured) -> list[str]:
    rates, gained = run.held_out, run.held_out.gain if run.held_out else None
    shown = [f"{100 * it.rate:.1f}" for it in (rates.before, rates.after) if it] if rates else []
    means = (
        number(run.mean(lambda rate: rate.reward_mean), 3),
        number(run.mean(lambda rate: rate.loss), 4),
        number(run.mean(lambda rate: rate.avg_response_length), 0),
        number(run.mean(lambda rate: rate.step_s)),
        number(run.wall_s, 0),
    )
    return [
        name,
        " -> ".join(shown) or NOTHING,
        span(rates.latest.low, rates.latest.high) if rates else NOTHING,
        f"{100 * gained.delta:+.1f}" if gained else NOTHING,
        f"{100 * gained.low:+.1f} to {100 * gained.high:+.1f}" if gained else NOTHING,
        *means,
    ]


def _name(arm: Arm, repeat: str) -> str:
    return f"{arm.short} {repeat}".strip()


def _sources(made: Comparison) -> Iterator[str]:
    for arm, name, run in _runs(made):
        what = "job" if run.is_log else "run"
        yield f"- {_name(arm, name)} {what}: `{run.job or run.source}`"


def _runs(made: Comparison) -> Iterator[tuple[Arm, str, Measured]]:
    return ((arm, name, run) for arm in made.arms for name, run in arm.runs.items())


def _formulas(arms: Sequence[Arm]) -> list[str]:
    formulas = {arm.short: _formula(arm) for arm in arms}
    if len(set(formulas.values())) == 1:
        return [f"- formula: {formulas[arms[0].short]}"]
    return [f"- {short} formula: {formula}" for short, formula in formulas.items()]


def _formula(arm: Arm) -> str:
    counts = {run.num_trajectories for run in arm.runs.values() if run.steps}
    count = counts.pop() if len(counts) == 1 else None
    return f"`tokens/sec = ({count or 'num_trajectories'} * avg_response_length) / generate_duration_s`"


def _facts(pair: Pair) -> Iterator[str]:
    tokens = pair.tokens
    if not pair.keys:
        yield "No step is complete on both sides yet: there is nothing to average."
        return
    if tokens is not None:
        yield _fact("median (paired steps)", (tokens.baseline_median, tokens.candidate_median), "tokens/sec")
        yield from _certainty(pair, tokens)
    if pair.gain:
        yield _gain(pair.gain)
    if rewards := pair.means(lambda rate: rate.reward_mean):
        yield _fact("mean reward (paired steps)", rewards, digits=4)
    if seconds := pair.means(lambda rate: rate.generate_s):
        yield _fact("generation (mean of paired steps)", seconds, "s")
    if seconds := pair.means(lambda rate: rate.step_s):
        yield _fact("whole step (mean of paired steps)", seconds, "s")
    before_s, after_s = pair.baseline.wall_s(), pair.candidate.wall_s()
    if before_s is not None and after_s is not None:
        yield _fact("wall time of a run", (before_s, after_s), "s")


def _certainty(pair: Pair, tokens: Paired) -> Iterator[str]:
    if tokens.runs > 1:
        yield f"- 95 % interval of the average's delta %: {interval(tokens.interval_percent)} ({_OVER_RUNS})"
        spreads = pair.baseline.spread(), pair.candidate.spread()
        yield f"- spread of the runs' averages: {' vs '.join(map(number, spreads))} tokens/sec"
        return
    within = tokens.within_run_percent
    certainty = f"delta % {interval(within)} (95 %, bootstrap over its steps)" if within else "one paired step"
    yield f"- within this run: {certainty}; it says nothing about another run. {_REPEAT}"


def _gain(gain: HeldOutPair) -> str:
    over = "over the pairs of runs" if gain.runs > 1 else "over the instances of these runs"
    delta = number(_difference(gain.baseline, gain.candidate))
    only = f", {gain.unpaired} not shared" if gain.unpaired else ""
    return (
        f"- held-out gain (paired, {gain.instances} instances{only}): {number(gain.baseline)} vs "
        f"{number(gain.candidate)} points, delta {delta} (95 %: {interval(gain.interval)}, {over})"
    )


def _fact(name: str, values: tuple[float, float], unit: str = "", digits: int = 1) -> str:
    before, after = values
    shown = f"{number(before, digits)} vs {number(after, digits)}{' ' if unit else ''}{unit}"
    return f"- {name}: {shown}, delta {number(after - before, digits)}, {number(percent(before, after))} %"


def _notes(made: Comparison) -> Iterator[str]:
    for arm, name, run in _runs(made):
        who = f"{arm.label} {name}".strip()
        if run.status not in (None, RunState.done):
            yield f"- note: {who} is not over (its status: {run.status})"
        if run.incomplete:
            yield f"- note: {who} has {run.incomplete} incomplete step(s), left out"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int = sys.maxsize) -> list[str]:
    """Lines without ends. Where `room` is too small, headers have a word a line, and columns without a place follow
    below the first ones. Raises ValueError for a row of another length."""
    columns = list(zip(headers, *rows, strict=True))
    heads = [[header] for header in headers]
    if sum(max(map(len, column)) + len(_BETWEEN) for column in columns) > room + len(_BETWEEN):
        heads = [header.split() or [""] for header in headers]
    widths = [max(map(len, (*head, *column[1:]))) for head, column in zip(heads, columns, strict=True)]
    ends = list(accumulate(width + len(_BETWEEN) for width in widths))
    kept = max(2, sum(end - len(_BETWEEN) <= room for end in ends))
    height = max(map(len, heads))
    top = zip(*([*head, *[""] * (height - len(head))] for head in heads[:kept]), strict=True)
    lines = [_line(cells, widths) for cells in top] + ["-+-".join("-" * width for width in widths[:kept])]
    lines += [_line(row[:kept], widths) for row in rows]
    if kept >= len(headers):
        return lines
    return [*lines, "", *table([headers[0], *headers[kept:]], [[row[0], *row[kept:]] for row in rows], room)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=False))
    return _BETWEEN.join([cells[0].ljust(widths[0]), *rest])


def number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no negative zero


def step_name(key: Key) -> str:
    repeat, step = key
    return f"{step} ({repeat})" if repeat else str(step)


def pair_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """A row for each step that either side has, then the averages over those that both have."""
    before, after = made.arms
    rates = before.rates(), after.rates()
    rows = [
        _difference_row(step_name(key), _tokens_per_s(rates[0].get(key)), _tokens_per_s(rates[1].get(key)))
        for key in made.step_keys()
    ]
    if tokens := made.pairs[0].tokens:
        rows.append(_difference_row(average_name(tokens), tokens.baseline_average, tokens.candidate_average))
    names = [f"{arm.label} tokens/sec" for arm in made.arms]
    return table(["Step", *names, f"Delta ({after.short}-{before.short})", "Delta %"], rows, room)


def average_name(tokens: Paired) -> str:
    return "Average (paired steps)" if tokens.runs == 1 else f"Average ({tokens.runs} runs a side)"


def _difference_row(name: str, before: float | None, after: float | None) -> list[str]:
    return [name, *map(number, (before, after, _difference(before, after), percent(before, after)))]


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _tokens_per_s(rate: StepRate | None) -> float | None:
    return rate.tokens_per_s if rate else None


def arms_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """A row an arm, over the steps that it shares with the baseline; the baseline's own over all of its steps."""
    base = made.arms[0]
    headers = ["Arm", "Runs", "Paired steps", f"{base.short} tokens/sec", "Arm tokens/sec", "Delta", "Delta %"]
    headers += ["95 % of delta %", "Arm median", "Spread of runs", "Mean reward", "Held-out gain", "Wall s a run"]
    baseline = pair(base, base)
    return table(headers, [_arm_row(baseline, base), *(_arm_row(arms, arms.candidate) for arms in made.pairs)], room)


def _arm_row(arms: Pair, arm: Arm) -> list[str]:
    tokens, rewards = arms.tokens, arms.means(lambda rate: rate.reward_mean)
    gain = number(arms.gain.candidate if arms.gain else None)
    last = [number(arm.spread()), number(rewards[1] if rewards else None, 4), gain, number(arm.wall_s())]
    if tokens is None:
        return [arm.label, str(len(arm.runs)), "0", NOTHING, number(arm.average()), *[NOTHING] * 4, *last]
    averages = [number(tokens.baseline_average), number(tokens.candidate_average)]
    over_runs = interval(tokens.interval_percent) if tokens.runs > 1 else ONE_RUN
    differences = [number(tokens.delta), number(tokens.delta_percent), over_runs]
    if arms.baseline is arms.candidate:
        differences = [""] * len(differences)
    row = [arm.label, str(len(arm.runs)), str(tokens.steps)]
    return [*row, *averages, *differences, number(tokens.candidate_median), *last]


def interval(bounds: Interval | None) -> str:
    return f"{number(bounds[0])} to {number(bounds[1])}" if bounds else NOTHING


def steps_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """Tokens/s a step and arm, each arm but the baseline with its difference in per cent."""
    base, *others = made.arms
    differing = [name for arm in others for name in (f"{arm.label} tokens/sec", "Delta %")]
    rates = [arm.rates() for arm in made.arms]
    rows = [_step_row(key, [_tokens_per_s(arm.get(key)) for arm in rates]) for key in made.step_keys()]
    return table(["Step", f"{base.label} tokens/sec", *differing], rows, room)


def _step_row(key: Key, values: Sequence[float | None]) -> list[str]:
    base, *others = values
    return [step_name(key), number(base), *(number(it) for value in others for it in (value, percent(base, value)))]


_NUMBERS = ("tokens_per_s", "reward_mean", "avg_response_length", "generate_s", "step_s")


def record(made: Comparison) -> dict[str, Any]:
    """The baseline is the first of `arms`; `pairs` has an entry for each other."""
    return {
        "baseline": made.arms[0].label,
        "engines": made.engines,
        "source": made.source,
        "arms": [_arm(arm) for arm in made.arms],
        "pairs": [_pair(pair) for pair in made.pairs],
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "label": arm.label,
        "short": arm.short,
        "average_tokens_per_s": arm.average(),
        "spread_of_runs_tokens_per_s": arm.spread(),
        "wall_s": arm.wall_s(),
        "runs": [_run(name, run) for name, run in arm.runs.items()],
    }


def _run(name: str, run: Measured) -> dict[str, Any]:
    return {
        "repeat": name or None,
        "source": run.source,
        "kind": "skyrl_log" if run.is_log else "run",
        "job": run.job,
        "status": run.status,
        "num_trajectories": run.num_trajectories,
        "wall_s": run.wall_s,
        "incomplete_steps": run.incomplete,
        "held_out": held_out_record(run.held_out) if run.held_out else None,
        "steps": [{"step": step, **asdict(run.steps[step])} for step in sorted(run.steps)],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    tokens = pair.tokens
    rewards = pair.means(lambda rate: rate.reward_mean) or (None, None)
    return {
        "candidate": pair.candidate.label,
        "paired_steps": len(pair.keys),
        "baseline_average_tokens_per_s": tokens and tokens.baseline_average,
        "candidate_average_tokens_per_s": tokens and tokens.candidate_average,
        "delta_tokens_per_s": tokens and tokens.delta,
        "delta_percent": tokens and tokens.delta_percent,
        "paired_runs": tokens.runs if tokens else 0,
        "delta_percent_interval": tokens and tokens.interval_percent,
        "within_run_delta_percent_interval": tokens and tokens.within_run_percent,
        "baseline_median_tokens_per_s": tokens and tokens.baseline_median,
        "candidate_median_tokens_per_s": tokens and tokens.candidate_median,
        "baseline_reward_mean": rewards[0],
        "candidate_reward_mean": rewards[1],
        "held_out_gain_points": asdict(pair.gain) if pair.gain else None,
        "held_out_percent": asdict(pair.held_out) if pair.held_out else None,
        "steps": list(_paired_steps(pair)),
    }


def _paired_steps(pair: Pair) -> Iterator[dict[str, Any]]:
    rates = pair.baseline.rates(), pair.candidate.rates()
    for repeat, step in pair.keys:
        before, after = (arm_rates[repeat, step].tokens_per_s for arm_rates in rates)
        yield {
            "repeat": repeat or None,
            "step": step,
            "baseline_tokens_per_s": before,
            "candidate_tokens_per_s": after,
            "delta_tokens_per_s": _difference(before, after),
            "delta_percent": percent(before, after),
        }


def csv_text(made: Comparison) -> str:
    """`delta_percent` is against the baseline's step of the same repeat."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["arm", "repeat", "step", *_NUMBERS, "baseline_tokens_per_s", "delta_percent"])
    base = made.arms[0].rates()
    for arm in made.arms:
        for key, rate in arm.rates().items():
            before = _tokens_per_s(base.get(key))
            delta = percent(before, rate.tokens_per_s)
            numbers = [getattr(rate, name) for name in _NUMBERS]
            lines.writerow([arm.label, *key, *("" if value is None else value for value in [*numbers, before, delta])])
    return written.getvalue()
