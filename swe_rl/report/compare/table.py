"""The tables of a comparison: the published one for two arms, a summary and a row a step for any number.

Invariants:
- A column is as wide as its widest cell; the first to the left, the others to the right; one decimal.
- What is not known reads N/A; a difference is never taken from rounded numbers.
- An interval of a difference is over pairs of runs; where there is one pair the cell says so.
"""

from collections.abc import Sequence

from swe_rl.report.compare.compare import Arm, Comparison, Key, Pair, StepRate, pair
from swe_rl.report.compare.statistics import Interval, Paired, percent

NOTHING = "N/A"
ONE_RUN = "one run"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines without ends. Raises ValueError for a row of another length."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return [_line(headers, widths), "-+-".join("-" * width for width in widths), *(_line(row, widths) for row in rows)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return " | ".join([cells[0].ljust(widths[0]), *rest])


def number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no negative zero


def step_name(key: Key) -> str:
    repeat, step = key
    return f"{step} ({repeat})" if repeat else str(step)


def pair_table(made: Comparison) -> list[str]:
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
    return table(["Step", *names, f"Delta ({after.short}-{before.short})", "Delta %"], rows)


def average_name(tokens: Paired) -> str:
    return "Average (paired steps)" if tokens.runs == 1 else f"Average ({tokens.runs} runs a side)"


def _difference_row(name: str, before: float | None, after: float | None) -> list[str]:
    if before is None or after is None:
        return [name, number(before), number(after), NOTHING, NOTHING]
    return [name, number(before), number(after), number(after - before), number(percent(before, after))]


def _tokens_per_s(rate: StepRate | None) -> float | None:
    return rate.tokens_per_s if rate else None


def arms_table(made: Comparison) -> list[str]:
    """A row an arm, over the steps that it shares with the baseline; the baseline's own over all of its steps."""
    base = made.arms[0]
    headers = ["Arm", "Runs", "Paired steps", f"{base.short} tokens/sec", "Arm tokens/sec", "Delta", "Delta %"]
    headers += ["95 % of delta %", "Arm median", "Spread of runs", "Mean reward", "Held-out gain", "Wall s a run"]
    own = pair(base, base)
    return table(headers, [_arm_row(own, base), *(_arm_row(one, one.candidate) for one in made.pairs)])


def _arm_row(one: Pair, arm: Arm) -> list[str]:
    tokens, rewards = one.tokens, one.means(lambda rate: rate.reward_mean)
    gain = number(one.gain.candidate if one.gain else None)
    last = [number(arm.spread()), number(rewards[1] if rewards else None, 4), gain, number(arm.wall_s())]
    if tokens is None:
        return [arm.label, str(len(arm.runs)), "0", NOTHING, number(arm.average()), *[NOTHING] * 4, *last]
    averages = [number(tokens.baseline_average), number(tokens.candidate_average)]
    over_runs = interval(tokens.interval_percent) if tokens.runs > 1 else ONE_RUN
    differences = [number(tokens.delta), number(tokens.delta_percent), over_runs]
    if one.baseline is one.candidate:
        differences = [""] * len(differences)
    row = [arm.label, str(len(arm.runs)), str(tokens.steps)]
    return [*row, *averages, *differences, number(tokens.candidate_median), *last]


def interval(found: Interval | None) -> str:
    return f"{number(found[0])} to {number(found[1])}" if found else NOTHING


def steps_table(made: Comparison) -> list[str]:
    """Tokens/s a step and arm, each arm but the baseline with its difference in per cent."""
    base, *others = made.arms
    headers = ["Step", f"{base.label} tokens/sec"]
    for arm in others:
        headers += [f"{arm.label} tokens/sec", "Delta %"]
    rates = [arm.rates() for arm in made.arms]
    return table(headers, [_step_row(key, [_tokens_per_s(own.get(key)) for own in rates]) for key in made.step_keys()])


def _step_row(key: Key, values: Sequence[float | None]) -> list[str]:
    base, *others = values
    row = [step_name(key), number(base)]
    for value in others:
        row += [number(value), number(percent(base, value) if base is not None and value is not None else None)]
    return row
