"""Makes headline figures: the page's tiles and held-out table, and `eval.json` for page and terminal.

Invariants:
- Before and after are the first and the latest evaluation of the split that was evaluated first.
- A rate stands with its number of samples and its 95 % interval, over instances, or not at all.
- Nothing is computed of `eval.json` here. For the page a file of another shape gives nothing rather than an error; on
  the terminal an evaluation of a part of its split says so in the first line.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swe_rl.errors import count_noun
from swe_rl.files.tables import as_mapping
from swe_rl.logger.progress_text import format_duration, format_number, format_span
from swe_rl.logger.summary import before_and_after, finite_mean, rates_of
from swe_rl.report.resolved import RateChange, evals_by_part, gain_of_run, is_int, pairs_of, part_of, resolved_rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Record = Mapping[str, Any]
_SHOWN_REPOSITORIES = 30
_SHOWN_FAILING = 30
# This agent hands in the data set's own patches.
GOLD = "gold"
_SHOWN_TRICKS = 6


def score_tiles(scores: Record) -> list[dict[str, str]]:
    """Returns tiles of pass@k with its 95 % interval, and what is behind it."""
    whole = as_mapping(scores.get("all"))
    tiles = [
        {"label": "Resolved", "value": format_share(rate.get("rate")), "detail": _rate_interval(rate)}
        for rate in [as_mapping(whole.get("resolved"))]
        if rate and _rates_by_k(whole)
    ]
    tiles += [
        {"label": f"pass@{k}", "value": format_share(rate.get("rate")), "detail": _rate_interval(rate)}
        for k, rate in _rates_by_k(whole).items()
    ]
    if tiles:
        attempts = count_noun(int(whole.get("attempts") or 0), "attempt")
        detail = f"{attempts}, {whole.get('solved_attempts')} of them solved it"
        solved = f"{whole.get('instances_solved')} of {whole.get('instances')}"
        tiles.append({"label": "Instances solved once", "value": solved, "detail": detail})
        tiles += strength_tile(as_mapping(scores.get("strength")))
    return tiles


def strength_tile(strength: Record) -> list[dict[str, str]]:
    """How many wrong patches the tests accept; nothing where that was not measured."""
    rate, low, high = (strength.get(key) for key in ("false_pass_rate", "low", "high"))
    if not all(isinstance(value, int | float) for value in (rate, low, high)):
        return []
    counts = f"{strength.get('accepted')} of {strength.get('graded')}, {strength.get('num_instances')} instances"
    detail = f"{100 * low:.1f}–{100 * high:.1f} %, {counts}"  # type: ignore[operator]
    return [{"label": "Wrong patches that the tests accept", "value": format_share(rate), "detail": detail}]


def strength_line(strength: Record | None) -> str | None:
    """The same for the terminal."""
    if not strength:
        return None
    return (
        f"false_pass_rate {100 * strength['false_pass_rate']:.1f} %, 95 % interval "
        f"{format_span(strength['low'], strength['high'])} "
        f"({strength['accepted']} of {strength['graded']} wrong patches of "
        f"{strength['num_instances']} instances are accepted)"
    )


def score_rows(scores: Record, *, unrated: bool = False) -> dict[str, Any]:
    """Returns `ks`, and a row a repository, the whole last: name, instances, solved once, attempts, a rate or None a k.

    Without any rate there are no rows, unless `unrated` asks for the counts alone.
    """
    whole = as_mapping(scores.get("all"))
    ks = list(_rates_by_k(whole))
    rows = [
        _score_row(str(name), as_mapping(scored), ks) for name, scored in as_mapping(scores.get("repositories")).items()
    ]
    rows += [
        _score_row(f"part {name}", as_mapping(scored), ks) for name, scored in as_mapping(scores.get("parts")).items()
    ]
    if ks or unrated:
        return {"ks": ks, "rows": [*rows, _score_row("all", whole, ks)]}
    return {"ks": [], "rows": []}


def _score_row(name: str, scored: Record, ks: list[str]) -> list[Any]:
    counts = [scored.get(key) for key in ("instances", "instances_solved", "attempts")]
    return [name, *counts, *(as_mapping(_rates_by_k(scored).get(k)).get("rate") for k in ks)]


def _rates_by_k(scored: Record) -> dict[str, Record]:
    return {str(k): rate for k, rate in as_mapping(scored.get("pass_at")).items() if isinstance(rate, Mapping)}


def format_share(value: Any) -> str:
    """Returns a share's text for the page."""
    if isinstance(value, int | float):
        return f"{100 * value:.1f} %"
    return "–"


def _rate_interval(rate: Record) -> str:
    low = rate.get("low")
    high = rate.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    over = count_noun(int(rate.get("num_instances") or 0), "instance")
    return f"{100 * low:.1f}–{100 * high:.1f} %, {over}{left_out(rate)}"


def left_out(rate: Record) -> str:
    """Returns words on the instances that a rate is not about, and what they could make of it; or nothing."""
    missing, least, most = (rate.get(key) for key in ("left_out", "least", "most"))
    if not missing or not isinstance(least, int | float) or not isinstance(most, int | float):
        return ""
    return f"; {missing} left out, {100 * least:.1f} to {100 * most:.1f} % with them"


def print_scores(scores: dict[str, Any], console: "Console | None" = None) -> None:
    from rich.console import Console

    console = console or Console(highlight=False)
    if part := part_of(scores["all"]["instances"], scores.get("split_instances")):
        console.print(f"{scores.get('split')}: {part}")
    console.print(score_table(scores))
    if rate := scores["all"].get("resolved"):
        within = f"95 % interval {format_span(rate['low'], rate['high'])}"
        over = f"{count_noun(rate['num_instances'], 'instance')}, {count_noun(rate['num_samples'], 'attempt')}"
        console.print(f"resolved {_format_rate(rate['rate'])}, {within} ({over})")
    for k, rate in scores["all"]["pass_at"].items():
        within = f"95 % interval {format_span(rate['low'], rate['high'])}"
        over = f"{count_noun(rate['num_instances'], 'instance')}{left_out(rate)}"
        console.print(f"pass@{k} {_format_rate(rate['rate'])}, {within} ({over})")
    if line := strength_line(scores.get("strength")):
        console.print(line)
    if line := endpoint_line(scores.get("endpoint")):
        console.print(line)
    if tricks := scores["all"].get("cheating"):
        shown = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in tricks.items())
        console.print(f"tricks that were tried: {shown}")
    failed = {name: count for name, count in scores["all"]["statuses"].items() if name.endswith("_error")}
    if failed:
        shown = ", ".join(f"{count} {name}" for name, count in failed.items())
        console.print(f"not counted, for infrastructure failed them: {shown}")
    _print_failing(scores, console)


def endpoint_line(spent: Any) -> str:
    """Says what an endpoint was asked for, or returns an empty text."""
    record = as_mapping(spent)
    if not record:
        return ""
    tokens = f"{record['prompt_tokens']} tokens read ({record['cached_tokens']} cached)"
    said = f"endpoint: {record['calls']} calls, {tokens}, {record['sampled_tokens']} sampled"
    if record["cost"]:
        said += f", cost {record['cost']:.6g}"
    # A page of an older version has no such count.
    lost = record.get("lost_calls")
    if not lost:
        return said
    said += f"; {lost} without a reply may have used {record['lost_tokens']} tokens more"
    if record["lost_cost"]:
        said += f", cost {record['lost_cost']:.6g}"
    return said


def _print_failing(scores: Record, console: "Console") -> None:
    """Prints names; where the patches were the data set's own, each with the last words of its tests."""
    failing = as_mapping(scores.get("failing"))
    left_out = as_mapping(scores.get("left_out"))
    names = list(failing)
    more = ""
    if len(names) > _SHOWN_FAILING:
        more = f", and {len(names) - _SHOWN_FAILING} more in eval.json"
    if names and scores.get("evaluated") == GOLD:
        console.print(f"not resolved by their own gold patches{more}:")
        for name in names[:_SHOWN_FAILING]:
            words = as_mapping(failing[name])
            console.print(f"  {name}: {words.get('status')}: {words.get('last_words')}", markup=False, soft_wrap=True)
    elif names:
        console.print(f"not resolved: {', '.join(names[:_SHOWN_FAILING])}{more}", markup=False)
    if left_out:
        console.print(f"left out: {len(left_out)}", markup=False)
    for name, reason in list(left_out.items())[:_SHOWN_FAILING]:
        console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)


def score_table(scores: dict[str, Any]) -> "Table":
    """Returns a table of repositories where there are several, and the whole."""
    from rich.table import Table

    shown = score_rows(scores, unrated=True)
    *repositories, whole = shown["rows"]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("repository", overflow="fold")
    for name in ("instances", "solved\nonce", "attempts", *(f"pass@{k}" for k in shown["ks"])):
        table.add_column(name, justify="right")
    if len(repositories) > 1:
        for row in repositories[:_SHOWN_REPOSITORIES]:
            table.add_row(*_score_cells(row))
        if len(repositories) > _SHOWN_REPOSITORIES:
            table.add_row(f"... {len(repositories) - _SHOWN_REPOSITORIES} more in eval.json")
    table.add_row(*_score_cells(whole), style="bold")
    return table


def _score_cells(row: Sequence[Any]) -> list[str]:
    name, instances, solved, attempts, *rates = row
    return [name, str(instances), str(solved), str(attempts), *(_format_rate(rate) for rate in rates)]


def _format_rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{100 * rate:.1f} %"


def eval_points(evals: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns one point a step of the main split, ascending: step, rate, samples, interval; rates in [0, 1]."""
    split = evals[0].get("split") if evals else None
    by_step = {event["step"]: event for event in evals if event.get("split") == split and is_int(event.get("step"))}
    return [_eval_point(by_step[step]) for step in sorted(by_step)]


def _eval_point(event: Record) -> dict[str, Any]:
    point: dict[str, Any] = {
        "step": event["step"],
        "split": str(event.get("split")),
        "part": part_of(event.get("num_instances"), event.get("split_instances")),
    }
    measured = resolved_rate(event)
    if measured is None:
        return point | {"rate": None, "samples": 0, "instances": None, "low": None, "high": None}
    return point | {
        "rate": measured.rate,
        "samples": measured.num_samples,
        "instances": measured.num_instances,
        "low": measured.low,
        "high": measured.high,
    }


def make_tiles(
    steps: Sequence[Record],
    points: Sequence[Record],
    summary: Record,
    wall_s: float | None,
    scores: Record | None = None,
    gained: RateChange | None = None,
) -> list[dict[str, str]]:
    """Returns label, value and detail of each tile; what is unknown is left out.

    `scores` are of an evaluation without steps; `gained` compares the last of `points` with the first, over the
    instances of both.
    """
    tiles = score_tiles(scores or {})
    if not tiles:
        last = max((int(step["step"]) for step in steps), default=0)
        count = sum(int(step.get("num_trajectories") or 0) for step in steps)
        tiles = [*_resolved_tiles(points, gained), _make_tile("Steps", str(last), f"{count:,} trajectories")]
    rate = finite_mean(rates_of(steps, "tokens_per_s"))
    sampled = finite_mean(rates_of(steps, "sampled_tokens_per_s"))
    if rate is not None:
        detail = "mean over steps"
        if sampled is not None:
            detail = f"mean over steps; {sampled:,.0f} sampled tokens/s"
        tiles.append(_make_tile("Response tokens/s", f"{rate:,.0f}", detail))
    if wall_s is not None:
        step_s = finite_mean(step.get("step_s") for step in steps)
        tiles.append(
            _make_tile(
                "Wall time", format_duration(wall_s), f"{format_duration(step_s)} a step" if step_s is not None else ""
            )
        )
    for key, value in summary.items():
        if key.startswith("peak_") and key.endswith("_gb") and isinstance(value, int | float):
            what = "of the main process"
            if "gpu" in key:
                what = "of a GPU"
            tiles.append(_make_tile("Peak memory", f"{format_number(value, '.2f')} GB", what))
    return tiles


def tricks_tile(records: Sequence[Record]) -> list[dict[str, str]]:
    """Returns how often a reward without a solution was tried, in steps and evaluations; nothing where nobody tried."""
    tried: Counter[str] = Counter()
    for record in records:
        counts = record.get("cheating")
        tried.update({str(kind): int(count) for kind, count in as_mapping(counts).items()})
    if not tried:
        return []
    detail = "\n".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in tried.most_common(_SHOWN_TRICKS))
    return [_make_tile("Tricks tried", f"{tried.total():,}", detail)]


def _resolved_tiles(points: Sequence[Record], gained: RateChange | None) -> list[dict[str, str]]:
    known = [point for point in points if point["rate"] is not None]
    if not known:
        return []
    before = known[0]
    after = known[-1]
    if before is after:
        return [
            _make_tile(
                f"Held-out resolved, step {before['step']}", format_share(before["rate"]), _describe_interval(before)
            )
        ]
    value = f"{format_share(before['rate'])} → {format_share(after['rate'])}"
    detail = f"step {before['step']}: {_describe_interval(before)}\nstep {after['step']}: {_describe_interval(after)}"
    gain = after["rate"] - before["rate"]
    over = "held-out, last evaluation less the first"
    if gained is not None:
        gain = gained.delta
        over = f"{100 * gained.low:+.1f} to {100 * gained.high:+.1f}, paired over {gained.num_instances} instances"
        over += f"; {gained.unpaired} in one evaluation only" if gained.unpaired else ""
    return [
        _make_tile("Held-out resolved rate", value, detail),
        _make_tile("Gain in points", f"{100 * gain:+.1f}", over),
    ]


def part_tiles(evals: Sequence[Record]) -> list[dict[str, str]]:
    """Returns a tile for each part of a mix: what it resolved, and what it gained over the instances of both ends."""
    tiles = []
    for name, events in evals_by_part(evals).items():
        # The first tile has the rates, and the second, where there is one, the gain.
        for tile in _resolved_tiles(eval_points(events), gain_of_run(events)):
            tiles.append({**tile, "label": f"{name}: {tile['label']}"})
    return tiles


def instance_rows(evals: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns each held-out instance with (solved, samples) before and after; None where it was not measured."""
    before, after = (pairs_of(event) for event in before_and_after(evals))
    return [
        {"id": name, "before": before.get(name), "after": after.get(name)} for name in dict.fromkeys([*before, *after])
    ]


def _make_tile(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _describe_interval(point: Record) -> str:
    over = point["part"] or (f"{point['instances']} instances" if point["instances"] else "")
    shown = f"{100 * point['low']:.1f}–{100 * point['high']:.1f} %, n = {point['samples']}"
    if over:
        return f"{shown}, {over}"
    return shown
