"""What the user sees while a run runs, and the markers that its log keeps.

Invariants:
- Every phase, finished step and evaluation is one line in `run.log` (logger `swe_rl.progress`) whatever the console.
- On a terminal: two live lines; elsewhere plain lines, at most one every two seconds besides a line a step.
- Nothing here can fail a run: a console that goes away is ignored.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TextIO

from swe_rl.logger import progress_text as text
from swe_rl.logger.progress_state import ProgressState
from swe_rl.logger.progress_view import LiveView, PlainView, View, is_live

_log = logging.getLogger("swe_rl.progress")


class Progress:
    """Progress of one run; a context manager that always gives the terminal back.

    `total_steps` is the number of the last step, `done_steps` the one that a resumed run starts after; `console`
    defaults to stdout; `clock` is any steady clock in seconds. `state` is shown instead of that of steps.
    """

    def __init__(
        self,
        total_steps: int,
        console: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        done_steps: int = 0,
        environ: Mapping[str, str] | None = None,
        state: ProgressState | None = None,
    ) -> None:
        stream = sys.stdout if console is None else console
        self._clock = clock
        self.state = state or ProgressState(total_steps, done_steps=done_steps, step_started_s=clock())
        live = is_live(stream, os.environ if environ is None else environ)
        self._view: View = (LiveView if live else PlainView)(stream, self.state, clock)

    @contextmanager
    def phase(self, name: str, trajectories: int = 0) -> Iterator[None]:
        """A stretch of work, nested at will: `step`, `generate`, `grade`, `train`, `sync_weights`, `eval`.

        `trajectories` > 0 says that it collects that many; their count starts anew.
        """
        entered = self.state.enter(name, trajectories, self._clock())
        _log.info(text.started(name))
        self._view.refresh()
        try:
            yield
        finally:
            left, cost_s = self.state.leave(entered, self._clock())
            _log.info(text.finished(left, cost_s))

    def trajectory(self, status: str, tokens: int = 0) -> None:
        """One trajectory has ended; `tokens` were sampled for it, and feed the rate."""
        self.state.counts[str(status)] += 1
        self.state.tokens += tokens
        self._view.refresh()

    def show(self) -> None:
        """The state has changed by other ways than these."""
        self._view.refresh()

    def step_done(self, record: Mapping[str, Any]) -> None:
        """The step's record as `steps.jsonl` keeps it: one lasting line."""
        took_s = self.state.finish_step(int(record.get("step") or self.state.done_steps + 1), self._clock())
        _log.info(text.averages(record))
        self._lasting(text.step_line(record, self.state.total_steps, took_s))

    def eval_done(
        self, label: str, rate: float | None, num_samples: int, interval: tuple[float, float] | None = None
    ) -> None:
        """`interval`: 95 %, of the rate."""
        self._lasting(text.eval_line(label, rate, num_samples, interval))

    def message(self, message: str) -> None:
        """A lasting line on the console and in `run.log`."""
        self._lasting(message)

    def _lasting(self, line: str) -> None:
        _log.info(line)
        self._view.line(line)

    def __enter__(self) -> Self:
        self.state.step_started_s = self._clock()
        self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._view.stop()
