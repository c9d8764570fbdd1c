"""The signals that tell a run to end: heard once, answered as Ctrl-C is, which saves the state and stops everything.

Invariants:
- SIGTERM ends a run everywhere; the warnings of a scheduler (SIGUSR1, SIGUSR2) end it inside a SLURM job only.
- A second signal does not hurry the first: a scheduler sends several, and the state is being saved. Ctrl-C twice does.
- Handlers of the job's launcher are put back at the end; outside a job they are left alone.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class Told:
    """`by`: the name of the first signal, once there was one. `deaf`: the run has ended, and writes down how."""

    by: str | None = None
    deaf: bool = False


@contextmanager
def listening(*, in_slurm: bool) -> Iterator[Told]:
    """Does nothing in another thread than the main one, nor where somebody else handles SIGTERM outside a job."""
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    numbers: tuple[signal.Signals, ...] = ()
    if in_slurm:
        numbers = (signal.SIGTERM, signal.SIGCONT, *_WARNINGS)  # SIGCONT comes before SIGTERM, and means nothing
    elif signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        numbers = (signal.SIGTERM,)
    before = {number: signal.signal(number, _handler(told)) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _handler(told: Told) -> Callable[[int, FrameType | None], Any]:
    def hear(number: int, _: FrameType | None) -> None:
        if told.by is None and not told.deaf and number != signal.SIGCONT:
            told.by = signal.Signals(number).name
            _interrupt()

    return hear


def _interrupt() -> None:
    """As Ctrl-C, also where that is ignored because a shell started the run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
