"""What the user sees while a run runs, and the markers that its log keeps.

Invariants:
- Every phase, finished step and evaluation is one line in `run.log` (logger `swe_rl.progress`) whatever the console.
- On a terminal: two live lines; elsewhere plain lines, at most one every two seconds besides a line a step.
- Nothing here can fail a run: a console that goes away is ignored.
- The state has no clock of its own; counts belong to the phase that collects. What is read for showing may be read by
  another thread: each reader takes its own copy first.
"""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TextIO

from swe_rl.logger import progress_text as text
from swe_rl.logger.progress_view import LiveView, PlainView, View, is_live

_log = logging.getLogger("swe_rl.progress")


@dataclass(slots=True)
class ProgressState:
    total_steps: int
    done_steps: int = 0
    step_started_s: float = 0.0
    step_times_s: list[float] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)  # name and start, innermost last
    expected: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    collecting_since_s: float | None = None

    def enter(self, phase: str, trajectories: int, now_s: float) -> tuple[str, float]:
        """What `leave` is given: phases of two tasks may overlap."""
        entered = (phase, now_s)
        self.phases.append(entered)
        if phase == "step":
            self.step_started_s = now_s
        if trajectories:
            self.expected, self.tokens, self.collecting_since_s = trajectories, 0, now_s
            self.counts = Counter()
        return entered

    def leave(self, entered: tuple[str, float], now_s: float) -> tuple[str, float]:
        phase, since_s = entered
        self.phases.remove(entered)
        if self.collecting_since_s == since_s:
            self.collecting_since_s = None
        return phase, now_s - since_s

    def finish_step(self, step: int, now_s: float) -> float:
        """Seconds that the step took."""
        self.step_times_s.append(now_s - self.step_started_s)
        self.step_started_s = now_s
        self.done_steps = step
        return self.step_times_s[-1]

    def left_s(self, now_s: float) -> float | None:
        """Mean time of the last ten steps times the steps left, less what the present one has had; None before any."""
        recent = self.step_times_s[-10:]
        if not recent or self.done_steps >= self.total_steps:
            return None
        mean_s = sum(recent) / len(recent)
        current_s = min(now_s - self.step_started_s, mean_s)
        return mean_s * (self.total_steps - self.done_steps) - current_s

    def sampled_tokens_per_s(self, now_s: float) -> float:
        since_s = self.collecting_since_s
        return self.tokens / (now_s - since_s) if since_s is not None and now_s > since_s else 0.0

    def headline(self, now_s: float) -> str:
        """`step 3/15  generate 12.0s  4:10 left`."""
        parts = [f"step {min(self.done_steps + 1, self.total_steps)}/{self.total_steps}"] if self.total_steps else []
        for name, since_s in self.phases[-1:]:
            parts.append(f"{name} {text.duration(now_s - since_s)}")
        if (left_s := self.left_s(now_s)) is not None:
            parts.append(f"{text.duration(left_s)} left")
        return "  ".join(parts)

    def collection(self, now_s: float) -> str | None:
        """The line of the collecting phase, None outside one."""
        if self.collecting_since_s is None:
            return None
        counts = dict(self.counts)
        return text.collection_line(sum(counts.values()), self.expected, counts, self.sampled_tokens_per_s(now_s))


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

    def __exit__(self, *_: object) -> None:
        self._view.stop()
