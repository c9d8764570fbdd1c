"""Prints a comparison: what is compared, by which formula, the tables, and what the steps say together.
For programs there are one JSON object, and a CSV line for each arm, repeat and step.

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
from swe_rl.logger.progress_text import format_span
from swe_rl.report.compare.compare import (
    Arm,
    Comparison,
    HeldOut,
    HeldOutPair,
    Key,
    MeasuredRun,
    Pair,
    StepRate,
    held_out_record,
    pair_arms,
    pair_line,
)
from swe_rl.report.statistics import LEVEL, RESAMPLES, SEED, Interval, Paired, percent_change

NOTHING = "N/A"
_BETWEEN = " | "
ONE_RUN = "one run"
_OVER_RUNS = "t-interval over the pairs of runs"
_REPEAT = "A --multirun with job.repeat=0,1,2,3 repeats the arms in turn."


def comparison_text(made: Comparison, room: int = sys.maxsize) -> str:
    """Returns the text of one arm or more, in `room` columns, without a newline at the end."""
    head = [_comparison_title(made), "", *_source_lines(made)]
    if not made.has_steps():  # evaluations alone
        lines = [*head, "", *_held_out(made), *_note_lines(made), *runs_table(made, room)]
        return wrap_lines(lines, room)
    lines = [*head, *_formula_lines(made.arms), ""]
    if len(made.arms) == 2:
        lines += [*pair_table(made, room), "", *_fact_lines(made.pairs[0])]
    else:
        lines += [*arms_table(made, room), "", *steps_table(made, room), ""]
        lines.append(f"- 95 % of delta %: {_OVER_RUNS}; {ONE_RUN}: none. {_REPEAT}")
    return wrap_lines([*lines, *_held_out(made), *_note_lines(made), *runs_table(made, room)], room)


def wrap_lines(lines: Sequence[str], room: int) -> str:
    """Returns lines in `room` columns; a line of a table stays whole."""
    tidy = partial(textwrap.fill, width=room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if len(line) <= room or _BETWEEN in line else tidy(line) for line in lines)


def _comparison_title(made: Comparison) -> str:
    engines = f"DP={made.engines} " if made.engines and made.engines > 1 else ""
    what = "Rollout Tokens/sec Comparison" if made.has_steps() else "Held-out Comparison"
    names = f"{made.arms[0].label} vs {made.arms[1].label}" if len(made.arms) == 2 else made.source
    return f"# {engines}{what} ({names})"


def _held_out(made: Comparison) -> Iterator[str]:
    """Yields each arm's last evaluation against the baseline's."""
    for arms in made.pairs:
        if arms.held_out:
            yield pair_line(arms.held_out) + (f": {arms.candidate.short}" if len(made.pairs) > 1 else "")


_RUN = ("Run", "Held-out %", "95 %", "Gain", "95 %", "Reward", "Loss", "Length", "Step s", "Wall s")


def runs_table(made: Comparison, room: int) -> list[str]:
    """Returns what came of each run: its latest evaluation, the gain over instances, means over its steps.

    A column that no run fills is left out; without an evaluation there is no table, for the others say the rest.
    """
    if not made.has_evaluations():
        return []
    rows = [_run_row(_run_name(arm, name), run) for arm, name, run in _all_runs(made)]
    kept = [index for index in range(len(_RUN)) if any(row[index] != NOTHING for row in rows)]
    splits = dict.fromkeys(_describe_evaluated(run.held_out) for _, _, run in _all_runs(made) if run.held_out)
    said = f"Evaluated on {' and '.join(splits)}; gains are paired over instances."
    return [
        "",
        said,
        "",
        *format_table([_RUN[index] for index in kept], [[row[index] for index in kept] for row in rows], room),
    ]


def _describe_evaluated(held_out: HeldOut) -> str:
    count = held_out.latest.num_instances
    over = held_out.part or (f"{count} instances" if count else "")
    return f"{held_out.split}{f', {over}' if over else ''}"


def _run_row(name: str, run: MeasuredRun) -> list[str]:
    rates = run.held_out
    gained = run.held_out.gain if run.held_out else None
    shown = [f"{100 * it.rate:.1f}" for it in (rates.before, rates.after) if it] if rates else []
    means = (
        format_number(run.mean(lambda rate: rate.reward_mean), 3),
        format_number(run.mean(lambda rate: rate.loss), 4),
        format_number(run.mean(lambda rate: rate.avg_response_length), 0),
        format_number(run.mean(lambda rate: rate.step_s)),
        format_number(run.wall_s, 0),
    )
    return [
        name,
        " -> ".join(shown) or NOTHING,
        format_span(rates.latest.low, rates.latest.high) if rates else NOTHING,
        f"{100 * gained.delta:+.1f}" if gained else NOTHING,
        f"{100 * gained.low:+.1f} to {100 * gained.high:+.1f}" if gained else NOTHING,
        *means,
    ]


def _run_name(arm: Arm, repeat: str) -> str:
    return f"{arm.short} {repeat}".strip()


def _source_lines(made: Comparison) -> Iterator[str]:
    for arm, name, run in _all_runs(made):
        what = "job" if run.is_log else "run"
        yield f"- {_run_name(arm, name)} {what}: `{run.job or run.source}`"


def _all_runs(made: Comparison) -> Iterator[tuple[Arm, str, MeasuredRun]]:
    return ((arm, name, run) for arm in made.arms for name, run in arm.runs.items())


def _formula_lines(arms: Sequence[Arm]) -> list[str]:
    formulas = {arm.short: _arm_formula(arm) for arm in arms}
    if len(set(formulas.values())) == 1:
        return [f"- formula: {formulas[arms[0].short]}"]
    return [f"- {short} formula: {formula}" for short, formula in formulas.items()]


def _arm_formula(arm: Arm) -> str:
    counts = {run.num_trajectories for run in arm.runs.values() if run.steps}
    count = counts.pop() if len(counts) == 1 else None
    return f"`tokens/sec = ({count or 'num_trajectories'} * avg_response_length) / generate_duration_s`"


def _fact_lines(pair: Pair) -> Iterator[str]:
    tokens = pair.tokens
    if not pair.keys:
        yield "No step is complete on both sides yet: there is nothing to average."
        return
    if tokens is not None:
        yield _fact_line("median (paired steps)", (tokens.baseline_median, tokens.candidate_median), "tokens/sec")
        yield from _certainty_lines(pair, tokens)
    if pair.gain:
        yield _gain_line(pair.gain)
    if rewards := pair.means(lambda rate: rate.reward_mean):
        yield _fact_line("mean reward (paired steps)", rewards, digits=4)
    if seconds := pair.means(lambda rate: rate.generate_s):
        yield _fact_line("generation (mean of paired steps)", seconds, "s")
    if seconds := pair.means(lambda rate: rate.step_s):
        yield _fact_line("whole step (mean of paired steps)", seconds, "s")
    before_s = pair.baseline.wall_s()
    after_s = pair.candidate.wall_s()
    if before_s is not None and after_s is not None:
        yield _fact_line("wall time of a run", (before_s, after_s), "s")


def _certainty_lines(pair: Pair, tokens: Paired) -> Iterator[str]:
    if tokens.runs > 1:
        yield f"- 95 % interval of the average's delta %: {format_interval(tokens.interval_percent)} ({_OVER_RUNS})"
        spreads = pair.baseline.spread(), pair.candidate.spread()
        yield f"- spread of the runs' averages: {' vs '.join(map(format_number, spreads))} tokens/sec"
        return
    within = tokens.within_run_percent
    certainty = f"delta % {format_interval(within)} (95 %, bootstrap over its steps)" if within else "one paired step"
    yield f"- within this run: {certainty}; it says nothing about another run. {_REPEAT}"


def _gain_line(gain: HeldOutPair) -> str:
    over = "over the pairs of runs" if gain.runs > 1 else "over the instances of these runs"
    delta = format_number(_known_difference(gain.baseline, gain.candidate))
    only = f", {gain.unpaired} not shared" if gain.unpaired else ""
    return (
        f"- held-out gain (paired, {gain.instances} instances{only}): {format_number(gain.baseline)} vs "
        f"{format_number(gain.candidate)} points, delta {delta} (95 %: {format_interval(gain.interval)}, {over})"
    )


def _fact_line(name: str, values: tuple[float, float], unit: str = "", digits: int = 1) -> str:
    before, after = values
    shown = f"{format_number(before, digits)} vs {format_number(after, digits)}{' ' if unit else ''}{unit}"
    delta = format_number(after - before, digits)
    return f"- {name}: {shown}, delta {delta}, {format_number(percent_change(before, after))} %"


def _note_lines(made: Comparison) -> Iterator[str]:
    for arm, name, run in _all_runs(made):
        who = f"{arm.label} {name}".strip()
        if run.status not in (None, RunState.done):
            yield f"- note: {who} is not over (its status: {run.status})"
        if run.incomplete:
            yield f"- note: {who} has {run.incomplete} incomplete step(s), left out"


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int = sys.maxsize) -> list[str]:
    """Returns lines. Where `room` is too small, headers have a word a line, and columns without a place follow
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
    lines = [_table_line(cells, widths) for cells in top] + ["-+-".join("-" * width for width in widths[:kept])]
    lines += [_table_line(row[:kept], widths) for row in rows]
    if kept >= len(headers):
        return lines
    return [*lines, "", *format_table([headers[0], *headers[kept:]], [[row[0], *row[kept:]] for row in rows], room)]


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=False))
    return _BETWEEN.join([cells[0].ljust(widths[0]), *rest])


def format_number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no negative zero


def step_name(key: Key) -> str:
    repeat, step = key
    return f"{step} ({repeat})" if repeat else str(step)


def pair_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """Returns a row for each step that either side has, then the averages over those that both have."""
    before, after = made.arms
    rates = before.rates(), after.rates()
    rows = [
        _difference_row(step_name(key), _tokens_per_s(rates[0].get(key)), _tokens_per_s(rates[1].get(key)))
        for key in made.step_keys()
    ]
    if tokens := made.pairs[0].tokens:
        rows.append(_difference_row(average_name(tokens), tokens.baseline_average, tokens.candidate_average))
    names = [f"{arm.label} tokens/sec" for arm in made.arms]
    return format_table(["Step", *names, f"Delta ({after.short}-{before.short})", "Delta %"], rows, room)


def average_name(tokens: Paired) -> str:
    return "Average (paired steps)" if tokens.runs == 1 else f"Average ({tokens.runs} runs a side)"


def _difference_row(name: str, before: float | None, after: float | None) -> list[str]:
    return [name, *map(format_number, (before, after, _known_difference(before, after), percent_change(before, after)))]


def _known_difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _tokens_per_s(rate: StepRate | None) -> float | None:
    return rate.tokens_per_s if rate else None


def arms_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """Returns a row an arm, over the steps that it shares with the baseline; the baseline's own over all."""
    base = made.arms[0]
    headers = ["Arm", "Runs", "Paired steps", f"{base.short} tokens/sec", "Arm tokens/sec", "Delta", "Delta %"]
    headers += ["95 % of delta %", "Arm median", "Spread of runs", "Mean reward", "Held-out gain", "Wall s a run"]
    baseline = pair_arms(base, base)
    rows = [_arm_row(baseline, base), *(_arm_row(arms, arms.candidate) for arms in made.pairs)]
    return format_table(headers, rows, room)


def _arm_row(arms: Pair, arm: Arm) -> list[str]:
    tokens, rewards = arms.tokens, arms.means(lambda rate: rate.reward_mean)
    gain = format_number(arms.gain.candidate if arms.gain else None)
    reward = format_number(rewards[1] if rewards else None, 4)
    last = [format_number(arm.spread()), reward, gain, format_number(arm.wall_s())]
    if tokens is None:
        return [arm.label, str(len(arm.runs)), "0", NOTHING, format_number(arm.average()), *[NOTHING] * 4, *last]
    averages = [format_number(tokens.baseline_average), format_number(tokens.candidate_average)]
    over_runs = format_interval(tokens.interval_percent) if tokens.runs > 1 else ONE_RUN
    differences = [format_number(tokens.delta), format_number(tokens.delta_percent), over_runs]
    if arms.baseline is arms.candidate:
        differences = [""] * len(differences)
    row = [arm.label, str(len(arm.runs)), str(tokens.steps)]
    return [*row, *averages, *differences, format_number(tokens.candidate_median), *last]


def format_interval(bounds: Interval | None) -> str:
    return f"{format_number(bounds[0])} to {format_number(bounds[1])}" if bounds else NOTHING


def steps_table(made: Comparison, room: int = sys.maxsize) -> list[str]:
    """Returns tokens/s a step and arm, each arm but the baseline with its difference in per cent."""
    base, *others = made.arms
    differing = [name for arm in others for name in (f"{arm.label} tokens/sec", "Delta %")]
    rates = [arm.rates() for arm in made.arms]
    rows = [_step_row(key, [_tokens_per_s(arm.get(key)) for arm in rates]) for key in made.step_keys()]
    return format_table(["Step", f"{base.label} tokens/sec", *differing], rows, room)


def _step_row(key: Key, values: Sequence[float | None]) -> list[str]:
    base, *others = values
    figures = [format_number(it) for value in others for it in (value, percent_change(base, value))]
    return [step_name(key), format_number(base), *figures]


_NUMBERS = ("tokens_per_s", "reward_mean", "avg_response_length", "generate_s", "step_s")


def comparison_record(made: Comparison) -> dict[str, Any]:
    """Returns the record. The baseline is the first of `arms`; `pairs` has an entry for each other."""
    return {
        "baseline": made.arms[0].label,
        "engines": made.engines,
        "source": made.source,
        "arms": [_arm_record(arm) for arm in made.arms],
        "pairs": [_pair_record(pair) for pair in made.pairs],
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
    }


def _arm_record(arm: Arm) -> dict[str, Any]:
    return {
        "label": arm.label,
        "short": arm.short,
        "average_tokens_per_s": arm.average(),
        "spread_of_runs_tokens_per_s": arm.spread(),
        "wall_s": arm.wall_s(),
        "runs": [_run_record(name, run) for name, run in arm.runs.items()],
    }


def _run_record(name: str, run: MeasuredRun) -> dict[str, Any]:
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


def _pair_record(pair: Pair) -> dict[str, Any]:
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
            "delta_tokens_per_s": _known_difference(before, after),
            "delta_percent": percent_change(before, after),
        }


def csv_text(made: Comparison) -> str:
    """Returns CSV. `delta_percent` is against the baseline's step of the same repeat."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["arm", "repeat", "step", *_NUMBERS, "baseline_tokens_per_s", "delta_percent"])
    base = made.arms[0].rates()
    for arm in made.arms:
        for key, rate in arm.rates().items():
            before = _tokens_per_s(base.get(key))
            delta = percent_change(before, rate.tokens_per_s)
            numbers = [getattr(rate, name) for name in _NUMBERS]
            lines.writerow([arm.label, *key, *("" if value is None else value for value in [*numbers, before, delta])])
    return written.getvalue()
