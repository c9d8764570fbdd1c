"""An evaluation for the terminal: rates with their intervals, repository by repository.

Invariants:
- Nothing is computed here; every number is of `rollout/pass_at_k`.
- An evaluation of a part of its split says so in the first line.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from swe_rl.logger.progress_text import span
from swe_rl.report.resolved import part_of
from swe_rl.report.scores import left_out, score_rows

_SHOWN_REPOSITORIES = 30


def print_scores(scores: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if part := part_of(scores["all"]["instances"], scores.get("split_instances")):
        console.print(f"{scores.get('split')}: {part}")
    console.print(score_table(scores))
    if rate := scores["all"].get("resolved"):
        within = f"95 % interval {span(rate['low'], rate['high'])}"
        over = f"{rate['num_instances']} instances, {rate['num_samples']} attempts"
        console.print(f"resolved {_rate(rate['rate'])}, {within} ({over})")
    for k, rate in scores["all"]["pass_at"].items():
        within = f"95 % interval {span(rate['low'], rate['high'])}"
        over = f"{rate['num_instances']} instances{left_out(rate)}"
        console.print(f"pass@{k} {_rate(rate['rate'])}, {within} ({over})")
    if tricks := scores["all"].get("cheating"):
        shown = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in tricks.items())
        console.print(f"tricks that were tried: {shown}")
    failed = {name: count for name, count in scores["all"]["statuses"].items() if name.endswith("_error")}
    if failed:
        shown = ", ".join(f"{count} {name}" for name, count in failed.items())
        console.print(f"not counted, for infrastructure failed them: {shown}")


def score_table(scores: dict[str, Any]) -> Table:
    """Repositories where there are several, and the whole."""
    found = score_rows(scores, unrated=True)
    *repositories, whole = found["rows"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("repository", overflow="fold")
    for name in ("instances", "solved once", "attempts", *(f"pass@{k}" for k in found["ks"])):
        table.add_column(name, justify="right")
    if len(repositories) > 1:
        for row in repositories[:_SHOWN_REPOSITORIES]:
            table.add_row(*_cells(row))
        if len(repositories) > _SHOWN_REPOSITORIES:
            table.add_row(f"... {len(repositories) - _SHOWN_REPOSITORIES} more in eval.json")
    table.add_row(*_cells(whole), style="bold")
    return table


def _cells(row: Sequence[Any]) -> list[str]:
    name, instances, solved, attempts, *rates = row
    return [name, str(instances), str(solved), str(attempts), *(_rate(one) for one in rates)]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"
