"""The jobs of a sweep as text: a line each, the counts, and what went wrong; once, or until all have ended.

Invariants:
- Rows in, lines out. What is not known reads '-'.
- On a terminal one table is redrawn; elsewhere it is printed again whenever a state or a reason has changed, and
  now and then when steps were finished.
- SLURM is asked often at first, then every few seconds: a controller serves a whole cluster.
- A console that goes away ends the showing, not the looking.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from swe_rl.host.terminal import is_live
from swe_rl.logger.progress_text import duration, number
from swe_rl.submission.rows import JobRow, Outcome

_HEAD = ("job", "SLURM", "state", "step", "response tokens/s", "reward", "heard", "")
_NOTE = 60  # characters in the table; `failures` has all of it
_FOLDED_FROM = 24  # rows; beyond, jobs of which there is nothing to see share a line
_FOLDED = (Outcome.pending, Outcome.done)
_FIRST_S, _LAST_S, _GROWTH = 0.5, 10.0, 1.15
Look = Callable[[], list[JobRow]]


def counts(rows: Sequence[JobRow]) -> str:
    """`2 running, 1 pending (Resources), 5 done`."""
    totals = Counter(row.outcome for row in rows)
    return ", ".join(f"{totals[outcome]} {outcome}{_reasons(rows, outcome)}" for outcome in Outcome if totals[outcome])


def table(rows: Sequence[JobRow], *, fold: bool = False) -> list[str]:
    """`fold`: for a console on which all of a big sweep would not fit."""
    folded = [row for row in rows if fold and len(rows) > _FOLDED_FROM and row.outcome in _FOLDED]
    shown = [row for row in rows if row not in folded]
    cells = [_HEAD, *map(_cells, shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [*lines, counts(rows)]


def _cells(row: JobRow) -> tuple[str, ...]:
    step = "-" if row.step is None else f"{row.step}/{row.steps}" if row.steps else str(row.step)
    heard = "-" if row.silent_s is None else f"{duration(row.silent_s)} ago"
    note = row.note or row.label
    return (
        str(row.number),
        row.slurm_id or "-",
        row.outcome.value,
        step,
        number(row.tokens_per_s, ".0f"),
        number(row.reward, ".3f"),
        heard,
        note if len(note) <= _NOTE else f"{note[: _NOTE - 3]}...",
    )


def failures(rows: Sequence[JobRow]) -> list[str]:
    """Which jobs are not done, and why; where to read on."""
    lines = []
    for row in rows:
        if row.outcome is not Outcome.done:
            which = f" ({row.label})" if row.label else ""
            lines.append(f"job {row.number}{which}, SLURM {row.slurm_id or '-'}: {row.outcome}: {row.note or '-'}")
            lines.append(f"  {row.folder}")
    ended = sum(row.outcome is Outcome.done for row in rows)
    return [*lines, f"{ended} of {len(rows)} job{'' if len(rows) == 1 else 's'} done"]


def _reasons(rows: Sequence[JobRow], outcome: Outcome) -> str:
    if outcome not in (Outcome.pending, Outcome.requeued):
        return ""
    reasons = dict.fromkeys(row.note for row in rows if row.outcome is outcome and row.note)
    return f" ({', '.join(reasons)})" if reasons else ""


_STEPS_S, _STILL_S = 15.0, 60.0  # after so long finished steps are shown, or a line says that it goes on


def watch(look: Look, stream: TextIO, *, sleep: Callable[[float], None] = time.sleep) -> list[JobRow]:
    """The rows, once every one is at its end."""
    return (_live if is_live(stream, os.environ) else _plain)(look, stream, sleep)


def _plain(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> list[JobRow]:
    shown: list[tuple[str, str]] = []
    shown_steps: list[int | None] = []
    pause_s, still_s = _FIRST_S, 0.0
    while True:
        rows = look()
        seen = [(row.outcome.value, row.note if not row.outcome.is_end else "") for row in rows]
        steps = [row.step for row in rows]
        if seen != shown or (steps != shown_steps and still_s >= _STEPS_S):
            _say(stream, [*table(rows, fold=True), ""])
            pause_s = _FIRST_S if seen != shown else pause_s  # one change brings the next
            shown, shown_steps, still_s = seen, steps, 0.0
        elif still_s >= _STILL_S:
            _say(stream, [counts(rows)])
            still_s = 0.0
        if all(row.outcome.is_end for row in rows):
            return rows
        sleep(pause_s)
        still_s += pause_s
        pause_s = min(_LAST_S, pause_s * _GROWTH)


def _live(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> list[JobRow]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    pause_s = _FIRST_S
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            rows = look()
            live.update(Text("\n".join(table(rows, fold=True)), no_wrap=True, overflow="ellipsis"), refresh=True)
            if all(row.outcome.is_end for row in rows):
                break
            sleep(pause_s)
            pause_s = min(_LAST_S, pause_s * _GROWTH)
    _say(stream, table(rows, fold=True))
    return rows


def _say(stream: TextIO, lines: list[str]) -> None:
    with suppress(OSError, ValueError):
        print("\n".join(lines), file=stream, flush=True)
