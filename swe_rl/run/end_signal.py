"""Hears the signals that tell a run to end, once, and answers as Ctrl-C: the state is saved and everything stopped.

Invariants:
- SIGTERM ends a run everywhere; the warnings of a scheduler (SIGUSR1, SIGUSR2) end it inside a SLURM job only.
- A second signal does not hurry the first: a scheduler sends several while the state is saved. Ctrl-C twice does.
- Saving and stopping have `job.end_within_s`. Then host/ending ends the process, whatever it is doing.
- Handlers of the job's launcher are put back at the end; outside a job they are left alone.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from swe_rl.files.disk import DiskError
from swe_rl.hardware.slurm.requeue import EXIT_STATUS, Verdict, take_warning
from swe_rl.host.ending import INTERRUPTED
from swe_rl.logger.folder import RunState, StatusWriter
from swe_rl.run import event_loop

_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class EndSignal:
    """The signal to end. `by` is the name of the first one, once there was one.

    `waits` says that the run cannot answer yet, and calls `answer` once it can. `deaf` says that the run has ended, and
    writes down how.
    """

    by: str | None = None
    waits: bool = False
    deaf: bool = False

    def answer(self) -> None:
        self.waits = False
        if self.by is not None:
            raise KeyboardInterrupt


@dataclass(slots=True)
class LastWords:
    """Writes down how a run ended whose process has to be ended (`host/ending`): interrupted, or queued again by SLURM.

    The state that counts is that of the newest checkpoint. `save` asks SLURM, as the run itself would have done. It is
    for another thread than the main one, which hangs.
    """

    status: StatusWriter
    end_signal: EndSignal
    save: Callable[[], Verdict | None] = lambda: None

    def __call__(self, why: str) -> int:
        """Returns the exit status of the process."""
        ended = self.status.current
        # The end was written down, and something else hangs.
        if ended.status is not RunState.running:
            if ended.exit_status is None:
                return INTERRUPTED
            return ended.exit_status
        self.end_signal.by = self.end_signal.by or signal.SIGTERM.name
        verdict = None
        with suppress(DiskError):
            verdict = self.save()
        if verdict is not None and verdict.requeued:
            self.status.finish(RunState.requeued, reason=verdict.reason, exit_status=EXIT_STATUS)
            return EXIT_STATUS
        self.status.finish(RunState.interrupted, reason=why, exit_status=INTERRUPTED)
        return INTERRUPTED


@contextmanager
def listen_for_end(*, in_slurm: bool, waits: bool = False) -> Iterator[EndSignal]:
    """Listens inside the block, but not in another thread than the main one, nor where others handle SIGTERM outside a
    job.
    """
    end_signal = EndSignal(waits=waits)
    if threading.current_thread() is not threading.main_thread():
        yield end_signal
        return
    numbers: tuple[signal.Signals, ...] = ()
    if in_slurm:
        # SIGCONT comes before SIGTERM, and means nothing.
        numbers = (signal.SIGTERM, signal.SIGCONT, *_WARNINGS)
    elif signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        numbers = (signal.SIGTERM,)
    before = {number: signal.signal(number, _make_handler(end_signal)) for number in numbers}
    end_signal.by = end_signal.by or (take_warning() if waits and in_slurm else None)
    try:
        yield end_signal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _make_handler(end_signal: EndSignal) -> Callable[[int, FrameType | None], Any]:
    def hear(number: int, _: FrameType | None) -> None:
        if end_signal.by is None and not end_signal.deaf and number != signal.SIGCONT:
            end_signal.by = signal.Signals(number).name
            if not end_signal.waits:
                _interrupt_run()

    return hear


def _interrupt_run() -> None:
    """Interrupts the run as Ctrl-C does, also where that is ignored because a shell started it in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.raise_signal(signal.SIGINT)
    elif not event_loop.interrupt_job():
        raise KeyboardInterrupt
