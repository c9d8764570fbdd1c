"""This module shows how far work is whose items are counted.

Invariants:
- On a terminal it is a bar. Elsewhere, a line says that the work begins, and others how far it is, one in 30 seconds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swe_rl.logger.progress import PLAIN_EVERY_S

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


@contextmanager
def counted_work(
    console: Console, name: str, total: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """Shows the work inside. Yields a function that is called after each of its `total` items."""
    if console.is_terminal:
        with Progress(*_COLUMNS, console=console) as progress:
            bar = progress.add_task(name, total=total)
            yield lambda: progress.advance(bar)
        return
    done = 0
    shown_s = clock()

    def count_item() -> None:
        nonlocal done, shown_s
        done += 1
        if clock() - shown_s >= PLAIN_EVERY_S:
            shown_s = clock()
            say(f"{name}: {done} of {total}")

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"{name}: 0 of {total}")
    yield count_item
