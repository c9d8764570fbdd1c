"""Looking at a sweep until all its jobs have ended.

Invariants:
- On a terminal one table that is redrawn; elsewhere the table again whenever a state or a reason has changed, and
  now and then when steps were finished.
- SLURM is asked often at first, then every few seconds: a controller serves a whole cluster.
- A console that goes away ends the showing, not the looking.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from swe_rl.logger.progress_view import is_live
from swe_rl.submission.rows import Row
from swe_rl.submission.table import counts, table

_FIRST_S, _LAST_S, _GROWTH = 0.5, 10.0, 1.15
_STEPS_S, _STILL_S = 15.0, 60.0  # after so long finished steps are shown, or a line says that it goes on

Look = Callable[[], list[Row]]


def watch(look: Look, stream: TextIO, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Returns once every row is at its end."""
    if is_live(stream, os.environ):
        _live(look, stream, sleep)
    else:
        _plain(look, stream, sleep)


def _plain(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> None:
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
            return
        sleep(pause_s)
        still_s += pause_s
        pause_s = min(_LAST_S, pause_s * _GROWTH)


def _live(look: Look, stream: TextIO, sleep: Callable[[float], None]) -> None:
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


def _say(stream: TextIO, lines: list[str]) -> None:
    with suppress(OSError, ValueError):
        print("\n".join(lines), file=stream, flush=True)
