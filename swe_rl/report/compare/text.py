"""A comparison as it is printed: what is compared, by which formula, the tables, and what the steps say together.

Invariants:
- Two arms print in the layout of the published comparison, so that tools and eyes made for it read ours.
- An interval over the steps of one run a side is called `within this run`, never an interval of the difference.
- A run that is not over, or left steps incomplete, is named.
"""

from collections.abc import Iterator, Sequence

from swe_rl.logger.status import RunState
from swe_rl.report.compare.compare import Arm, Comparison, Gain, Measured, Pair
from swe_rl.report.compare.held_out import pair_line, run_lines
from swe_rl.report.compare.statistics import Paired, percent
from swe_rl.report.compare.table import ONE_RUN, arms_table, interval, number, pair_table, steps_table


def text(made: Comparison) -> str:
    """Of one arm or more, without a newline at the end."""
    if not made.has_steps():  # evaluations alone
        return "\n".join([_title(made), "", *_sources(made), "", *_held_out(made), *_notes(made)])
    lines = [_title(made), "", *_sources(made), *_formulas(made.arms), ""]
    if len(made.arms) == 2:
        lines += [*pair_table(made), "", *_facts(made.pairs[0])]
    else:
        lines += [*arms_table(made), "", *steps_table(made), ""]
        lines.append(f"- 95 % of delta %: {_OVER_RUNS}; {ONE_RUN}: none. {_REPEAT}")
    return "\n".join([*lines, *_held_out(made), *_notes(made)])


_OVER_RUNS = "t-interval over the pairs of runs"
_REPEAT = "A --multirun with job.repeat=0,1,2,3 repeats the arms in turn."


def _title(made: Comparison) -> str:
    engines = f"DP={made.engines} " if made.engines and made.engines > 1 else ""
    what = "Rollout Tokens/sec Comparison" if made.has_steps() else "Held-out Comparison"
    names = f"{made.arms[0].label} vs {made.arms[1].label}" if len(made.arms) == 2 else made.source
    return f"# {engines}{what} ({names})"


def _held_out(made: Comparison) -> Iterator[str]:
    """Each run's own figures, then each arm against the baseline."""
    for arm, name, run in _runs(made):
        if run.held_out:
            yield from run_lines(f"{arm.short}{f' {name}' if name else ''}", run.held_out)
    for one in made.pairs:
        if one.held_out:
            yield pair_line(one.held_out) + (f": {one.candidate.short}" if len(made.pairs) > 1 else "")


def _sources(made: Comparison) -> Iterator[str]:
    for arm, name, run in _runs(made):
        what = "job" if run.is_log else "run"
        yield f"- {arm.short}{f' {name}' if name else ''} {what}: `{run.job or run.source}`"


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
    if tokens is None:
        yield "No step is complete on both sides yet: there is nothing to average."
        return
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
    found = f"delta % {interval(within)} (95 %, bootstrap over its steps)" if within else "one paired step"
    yield f"- within this run: {found}; it says nothing about another run. {_REPEAT}"


def _gain(gain: Gain) -> str:
    over = "over the pairs of runs" if gain.runs > 1 else "within this run, over its instances"
    difference = number(gain.candidate - gain.baseline)
    return (
        f"- held-out gain (paired, {gain.instances} instances): {number(gain.baseline)} vs {number(gain.candidate)} "
        f"points, delta {difference} (95 %: {interval(gain.interval)}, {over})"
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
