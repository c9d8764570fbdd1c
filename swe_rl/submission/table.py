"""This module writes the jobs of a sweep as text: a line each, the counts, and what went wrong; once, or until all have
ended.

Invariants:
- Rows go in and lines come out. What is not known reads '-'.
- On a terminal one table is redrawn; elsewhere it is printed again whenever a state or a reason has changed, and now
  and then when steps were finished.
- SLURM is asked often at first, then every few seconds: a controller serves a whole cluster.
- A console that goes away ends the showing, not the looking.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from swe_rl.errors import count_noun
from swe_rl.host.terminal import is_live
from swe_rl.logger.progress_text import format_duration, format_number
from swe_rl.submission.rows import JobOutcome, JobRow

_HEAD = ("job", "SLURM", "state", "step", "response tokens/s", "reward", "heard", "")
# The table cuts a note at so many characters; `describe_failures` has all of it.
_NOTE = 60
# In a longer table, jobs of which there is nothing to see share a line.
_FOLDED_FROM = 24
_FOLDED = (JobOutcome.pending, JobOutcome.done)
_FIRST_S = 0.5
_LAST_S = 10.0
_GROWTH = 1.15
Look = Callable[[], list[JobRow]]


def count_outcomes(rows: Sequence[JobRow]) -> str:
    """Returns a line such as `2 running, 1 pending (Resources), 5 done`."""
    totals = Counter(row.outcome for row in rows)
    return ", ".join(
        f"{totals[outcome]} {outcome}{_pending_reasons(rows, outcome)}" for outcome in JobOutcome if totals[outcome]
    )


def format_table(rows: Sequence[JobRow], *, fold: bool = False) -> list[str]:
    """Returns the table's lines. `fold` is for a console on which all of a big sweep would not fit."""
    folded = [row for row in rows if fold and len(rows) > _FOLDED_FROM and row.outcome in _FOLDED]
    shown = [row for row in rows if row not in folded]
    cells = [_HEAD, *map(_row_cells, shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [*lines, count_outcomes(rows)]


def _row_cells(row: JobRow) -> tuple[str, ...]:
    step = "-"
    if row.step is not None:
        if row.steps:
            step = f"{row.step}/{row.steps}"
        else:
            step = str(row.step)
    if row.silent_s is None:
        heard = "-"
    else:
        heard = f"{format_duration(row.silent_s)} ago"
    note = row.note or row.label
    return (
        str(row.number),
        row.slurm_id or "-",
        row.outcome.value,
        step,
        format_number(row.tokens_per_s, ".0f"),
        format_number(row.reward, ".3f"),
        heard,
        note if len(note) <= _NOTE else f"{note[: _NOTE - 3]}...",
    )


def describe_failures(rows: Sequence[JobRow]) -> list[str]:
    """Says which jobs are not done, and why; where to read on."""
    lines = []
    for row in rows:
        if row.outcome is not JobOutcome.done:
            which = ""
            if row.label:
                which = f" ({row.label})"
            lines.append(f"job {row.number}{which}, SLURM {row.slurm_id or '-'}: {row.outcome}: {row.note or '-'}")
            lines.append(f"  {row.folder}")
    ended = sum(row.outcome is JobOutcome.done for row in rows)
    return [*lines, f"{ended} of {count_noun(len(rows), 'job')} done"]


def _pending_reasons(rows: Sequence[JobRow], outcome: JobOutcome) -> str:
    if outcome not in (JobOutcome.pending, JobOutcome.requeued):
        return ""
    reasons = dict.fromkeys(row.note for row in rows if row.outcome is outcome and row.note)
    if reasons:
        return f" ({', '.join(reasons)})"
    return ""


# Finished steps are shown after so long.
_STEPS_S = 15.0
# A line says after so long that the sweep goes on.
_STILL_S = 60.0


def watch_rows(look: Look, stream: TextIO, *, sleep: Callable[[float], None] = time.sleep) -> list[JobRow]:
    """Shows the rows until every job is at its end, and returns them then."""
    return (_watch_live if is_live(stream, os.environ) else _watch_plain)(look, stream, sleep)


def _watch_plain(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> list[JobRow]:
    shown: list[tuple[str, str]] = []
    shown_steps: list[int | None] = []
    pause_s = _FIRST_S
    still_s = 0.0
    while True:
        rows = look()
        seen = [(row.outcome.value, row.note if not row.outcome.is_end else "") for row in rows]
        steps = [row.step for row in rows]
        if seen != shown or (steps != shown_steps and still_s >= _STEPS_S):
            _print_lines(stream, [*format_table(rows, fold=True), ""])
            # One change brings the next, so the pause is short again.
            if seen != shown:
                pause_s = _FIRST_S
            shown = seen
            shown_steps = steps
            still_s = 0.0
        elif still_s >= _STILL_S:
            _print_lines(stream, [count_outcomes(rows)])
            still_s = 0.0
        if all(row.outcome.is_end for row in rows):
            return rows
        sleep(pause_s)
        still_s += pause_s
        pause_s = min(_LAST_S, pause_s * _GROWTH)


def _watch_live(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> list[JobRow]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    pause_s = _FIRST_S
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            rows = look()
            live.update(Text("\n".join(format_table(rows, fold=True)), no_wrap=True, overflow="ellipsis"), refresh=True)
            if all(row.outcome.is_end for row in rows):
                break
            sleep(pause_s)
            pause_s = min(_LAST_S, pause_s * _GROWTH)
    _print_lines(stream, format_table(rows, fold=True))
    return rows


def _print_lines(stream: TextIO, lines: list[str]) -> None:
    with suppress(OSError, ValueError):
        print("\n".join(lines), file=stream, flush=True)
