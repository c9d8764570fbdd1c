"""Prints a comparison: what is compared, by which formula, the tables, and what the steps say together.

Invariants:
- Two arms print in the layout of the published comparison, so that tools and eyes made for it read ours.
- An interval over the steps of one run a side is called `within this run`, never an interval of the difference.
- A run that is not over, or left steps incomplete, is named.
- In a table a column is as wide as its widest cell; the first to the left, the others to the right; one decimal.
- What is not known reads N/A; a difference is never taken from rounded numbers.
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

from swe_rl.logger.folder import RunState
from swe_rl.logger.progress_text import format_span
from swe_rl.report.compare.compare import Arm, Comparison, Key, MeasuredRun, Pair, StepRate, pair_arms
from swe_rl.report.compare.held_out import HeldOut, gain_line, pair_line
from swe_rl.report.statistics import Interval, Paired, known_difference, percent_change

NOTHING = "N/A"
_BETWEEN = " | "
ONE_RUN = "one run"
_OVER_RUNS = "t-interval over the pairs of runs"
_REPEAT = "A --multirun with job.repeat=0,1,2,3 repeats the arms in turn."


def comparison_text(made: Comparison, room: int = sys.maxsize) -> str:
    """Returns the text of one arm or more, in `room` columns, without a newline at the end."""
    head = [_comparison_title(made), "", *describe_runs(made)]
    if not made.has_steps():  # evaluations alone
        lines = [*head, "", *_held_out(made), *note_lines(made), *runs_table(made, room)]
        return wrap_lines(lines, room)
    lines = [*head, *_formula_lines(made.arms), ""]
    if len(made.arms) == 2:
        lines += [*pair_table(made, room), "", *_fact_lines(made.pairs[0])]
    else:
        lines += [*arms_table(made, room), "", *steps_table(made, room), ""]
        lines.append(f"- 95 % of delta %: {_OVER_RUNS}; {ONE_RUN}: none. {_REPEAT}")
    return wrap_lines([*lines, *_held_out(made), *note_lines(made), *runs_table(made, room)], room)


def wrap_lines(lines: Sequence[str], room: int) -> str:
    """Returns lines in `room` columns; a line of a table stays whole."""
    tidy = partial(textwrap.fill, width=room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if len(line) <= room or _BETWEEN in line else tidy(line) for line in lines)


def _comparison_title(made: Comparison) -> str:
    engines = ""
    if made.engines and made.engines > 1:
        engines = f"DP={made.engines} "
    what = "Held-out Comparison"
    if made.has_steps():
        what = "Rollout Tokens/sec Comparison"
    return f"# {engines}{what} ({name_arms(made)})"


def name_arms(made: Comparison) -> str:
    """Returns the labels of two variants; more than two are named by the folder that they come from."""
    if len(made.arms) == 2:
        return f"{made.arms[0].label} vs {made.arms[1].label}"
    return str(made.source)


def _held_out(made: Comparison) -> Iterator[str]:
    """Yields each arm's last evaluation against the baseline's."""
    for arms in made.pairs:
        if arms.held_out:
            yield pair_line(arms.held_out) + name_candidate(arms.candidate, made)


def name_candidate(arm: Arm, made: Comparison) -> str:
    """Returns what follows a line about an arm: its name, where there are several to tell apart."""
    if len(made.pairs) > 1:
        return f": {arm.short}"
    return ""


_RUN = ("Run", "Held-out %", "interval", "Gain", "interval", "Reward", "Loss", "Length", "Step s", "Wall s")


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
    held_out = [NOTHING] * 4
    if run.held_out:
        held_out = _held_out_cells(run.held_out)
    return [
        name,
        *held_out,
        format_number(run.mean(lambda rate: rate.reward_mean), 3),
        format_number(run.mean(lambda rate: rate.loss), 4),
        format_number(run.mean(lambda rate: rate.avg_response_length), 0),
        format_number(run.mean(lambda rate: rate.step_s)),
        format_number(run.wall_s, 0),
    ]


def _held_out_cells(rates: HeldOut) -> list[str]:
    """Returns the rates, the last one's interval, the gain and the gain's interval."""
    shown = " -> ".join(f"{100 * it.rate:.1f}" for it in (rates.before, rates.after) if it)
    cells = [shown or NOTHING, format_span(rates.latest.low, rates.latest.high)]
    gained = rates.gain
    if gained is None:
        return [*cells, NOTHING, NOTHING]
    return [*cells, f"{100 * gained.delta:+.1f}", f"{100 * gained.low:+.1f} to {100 * gained.high:+.1f}"]


def _run_name(arm: Arm, repeat: str) -> str:
    return f"{arm.short} {repeat}".strip()


def describe_runs(made: Comparison) -> Iterator[str]:
    """Yields where each run is."""
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
        yield gain_line(pair.gain)
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
    certainty = "one paired step"
    if within:
        certainty = f"delta % {format_interval(within)} (95 %, bootstrap over its steps)"
    yield f"- within this run: {certainty}; it says nothing about another run. {_REPEAT}"


def _fact_line(name: str, values: tuple[float, float], unit: str = "", digits: int = 1) -> str:
    before, after = values
    shown = f"{format_number(before, digits)} vs {format_number(after, digits)}{' ' if unit else ''}{unit}"
    delta = format_number(after - before, digits)
    return f"- {name}: {shown}, delta {delta}, {format_number(percent_change(before, after))} %"


def note_lines(made: Comparison) -> Iterator[str]:
    """Yields a line for each run that is not over, or left steps incomplete."""
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
    if repeat:
        return f"{step} ({repeat})"
    return str(step)


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
    if tokens.runs == 1:
        return "Average (paired steps)"
    return f"Average ({tokens.runs} runs a side)"


def _difference_row(name: str, before: float | None, after: float | None) -> list[str]:
    return [name, *map(format_number, (before, after, known_difference(before, after), percent_change(before, after)))]


def _tokens_per_s(rate: StepRate | None) -> float | None:
    if not rate:
        return None
    return rate.tokens_per_s


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
    if tokens.runs > 1:
        over_runs = format_interval(tokens.interval_percent)
    else:
        over_runs = ONE_RUN
    differences = [format_number(tokens.delta), format_number(tokens.delta_percent), over_runs]
    if arms.baseline is arms.candidate:
        differences = [""] * len(differences)
    row = [arm.label, str(len(arm.runs)), str(tokens.steps)]
    return [*row, *averages, *differences, format_number(tokens.candidate_median), *last]


def format_interval(bounds: Interval | None) -> str:
    if bounds:
        return f"{format_number(bounds[0])} to {format_number(bounds[1])}"
    return NOTHING


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
