"""Shows the user what a run does, and writes the markers that its log keeps.

Invariants:
- Every phase, finished step and evaluation is one line in `run.log` (logger `swe_rl.progress`) whatever the console.
- On a terminal there are two live lines; elsewhere plain lines, the first of a phase after two seconds, then one in 30.
- A quiet console gets messages only: how a run begins, warnings, how it ends.
- A lasting line is broken between its parts where the console is narrower; `run.log` has it whole.
- Nothing here can fail a run: a console that goes away (`| head`, a closed terminal) is ignored.
- rich is imported only where a live terminal is shown; whatever else the process prints appears above the live lines.
- The state has no clock of its own; counts belong to the phase that collects. What is read for showing may be read by
  another thread: each reader takes its own copy first.
"""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TextIO

from swe_rl.config.choices import Verbosity
from swe_rl.host.terminal import is_live, terminal_width
from swe_rl.logger import progress_text as text

if TYPE_CHECKING:
    from rich.console import RenderableType

# What is no terminal has this many columns: a file's lines stay whole.
_UNBOUNDED = 10_000
PLAIN_FIRST_S = 2.0
PLAIN_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class ProgressPhase:
    """A phase. `inside` is the phase that this one is a part of; phases of two tasks may lie side by side."""

    name: str
    since_s: float
    inside: "ProgressPhase | None"

    def text(self, now_s: float) -> str:
        return f"{self.name} {text.format_duration(now_s - self.since_s)}"


# Each task has its own.
_inside: ContextVar[ProgressPhase | None] = ContextVar("_inside", default=None)


@dataclass(slots=True)
class ProgressState:
    total_steps: int
    done_steps: int = 0
    step_started_s: float = 0.0
    step_times_s: list[float] = field(default_factory=list)
    # They are in the order of their starts.
    phases: list[ProgressPhase] = field(default_factory=list)
    expected: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    # The latest held-out rate, a share.
    held_out: float | None = None
    collecting_since_s: float | None = None

    def enter(self, name: str, trajectories: int, now_s: float, inside: ProgressPhase | None = None) -> ProgressPhase:
        phase = ProgressPhase(name, now_s, inside)
        self.phases.append(phase)
        if name == "step":
            self.step_started_s = now_s
        if trajectories:
            self.expected = trajectories
            self.tokens = 0
            self.collecting_since_s = now_s
            self.counts = Counter()
        return phase

    def leave(self, phase: ProgressPhase, now_s: float) -> float:
        """Ends a phase. Returns the seconds that it took."""
        self.phases.remove(phase)
        if self.collecting_since_s == phase.since_s:
            self.collecting_since_s = None
        return now_s - phase.since_s

    def at_work(self, now_s: float) -> str:
        """Returns the innermost phases, side by side: `start_engines 12.0s + start_trainer 11.8s`."""
        phases = list(self.phases)
        outer = [phase.inside for phase in phases]
        return " + ".join(phase.text(now_s) for phase in phases if phase not in outer)

    def finish_step(self, step: int, now_s: float) -> float:
        """Ends a step. Returns the seconds that it took."""
        self.step_times_s.append(now_s - self.step_started_s)
        self.step_started_s = now_s
        self.done_steps = step
        return self.step_times_s[-1]

    def left_s(self, now_s: float) -> float | None:
        """Returns the mean time of the last ten steps times the steps left, less what the present one has had.

        It is None before any step.
        """
        recent = self.step_times_s[-10:]
        if not recent or self.done_steps >= self.total_steps:
            return None
        mean_s = sum(recent) / len(recent)
        current_s = min(now_s - self.step_started_s, mean_s)
        return mean_s * (self.total_steps - self.done_steps) - current_s

    def sampled_tokens_per_s(self, now_s: float) -> float:
        since_s = self.collecting_since_s
        if since_s is not None and now_s > since_s:
            return self.tokens / (now_s - since_s)
        return 0.0

    def headline(self, now_s: float) -> str:
        """Returns a line such as `step 3/15 generate 12.0s 4:10 left`."""
        parts = [self._place()] if self.total_steps else []
        if at_work := self.at_work(now_s):
            parts.append(at_work)
        if (left_s := self.left_s(now_s)) is not None:
            parts.append(f"{text.format_duration(left_s)} left")
        return "  ".join(parts)

    def _place(self) -> str:
        """Returns the present step, or the one that an evaluation is before or after."""
        at_work = {phase.name for phase in list(self.phases)}
        if "eval" in at_work and "step" not in at_work and self.done_steps:
            return f"after step {self.done_steps}/{self.total_steps}"
        before = "before " if "eval" in at_work and "step" not in at_work else ""
        return f"{before}step {min(self.done_steps + 1, self.total_steps)}/{self.total_steps}"

    def collection(self, now_s: float) -> str | None:
        """Returns the line of the collecting phase, None outside one."""
        if self.collecting_since_s is None:
            return None
        counts = dict(self.counts)
        return text.collection_line(sum(counts.values()), self.expected, counts, self.sampled_tokens_per_s(now_s))


class PlainView:
    """Prints one lasting line each, and lines on the present state: PLAIN_FIRST_S into a phase, then every
    PLAIN_EVERY_S.
    """

    def __init__(self, stream: TextIO, state: ProgressState, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._state = state
        self._clock = clock
        self._since_s = clock()
        self._wait_s = PLAIN_FIRST_S
        self._broken = False

    def start(self) -> None:
        self._since_s = self._clock()
        self._wait_s = PLAIN_FIRST_S

    def start_phase(self) -> None:
        self.start()

    def line(self, message: str) -> None:
        if self._broken:
            return
        try:
            print(text.wrap_line(message, terminal_width(self._stream, _UNBOUNDED)), file=self._stream, flush=True)
        except (OSError, ValueError):
            self._broken = True

    def refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._since_s < self._wait_s:
            return
        self._since_s = now_s
        self._wait_s = PLAIN_EVERY_S
        collection = self._state.collection(now_s)
        self.line("  ".join(filter(None, (self._state.headline(now_s), collection))))

    def stop(self) -> None:
        pass


class LiveView:
    """Redraws four times a second by a thread of rich's; nothing but lasting lines is left behind."""

    def __init__(self, stream: TextIO, state: ProgressState, clock: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._clock = clock
        self._console = Console(file=stream, highlight=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True, screen=False
        )

    def start(self) -> None:
        self._live.start()

    def start_phase(self) -> None:
        pass

    def line(self, message: str) -> None:
        with suppress(OSError, ValueError):
            self._console.print(text.wrap_line(message, self._console.width), markup=False, soft_wrap=True)

    def refresh(self) -> None:
        # The redrawing thread reads the state.
        pass

    def stop(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now_s = self._clock()
        top = Table.grid(padding=(0, 2))
        top.add_row(
            Text(self._state.headline(now_s), style="bold", no_wrap=True),
            ProgressBar(total=max(self._state.total_steps, 1), completed=self._state.done_steps, width=24),
        )
        collection = self._state.collection(now_s)
        if collection:
            return Group(top, Text(f"  {collection}", no_wrap=True, overflow="ellipsis"))
        return top


_log = logging.getLogger("swe_rl.progress")


class Progress:
    """The progress of one run; a context manager that always gives the terminal back.

    `total_steps` is the number of the last step, `done_steps` the one that a resumed run starts after; `console`
    defaults to stdout; `clock` is any steady clock in seconds. `state` is shown instead of that of steps. `on_phase`
    hears of each phase that has ended, with its seconds, and raises nothing.
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
        verbosity: Verbosity = Verbosity.normal,
        on_phase: Callable[[str, float], None] = lambda name, took_s: None,
    ) -> None:
        stream = sys.stdout if console is None else console
        self._verbosity = verbosity
        self._on_phase = on_phase
        self._clock = clock
        self.state = state or ProgressState(total_steps, done_steps=done_steps, step_started_s=clock())
        live = not self._is_quiet and is_live(stream, os.environ if environ is None else environ)
        self._view: LiveView | PlainView = (LiveView if live else PlainView)(stream, self.state, clock)

    @property
    def _is_quiet(self) -> bool:
        return self._verbosity is Verbosity.quiet

    @contextmanager
    def phase(self, name: str, trajectories: int = 0) -> Iterator[None]:
        """Marks a stretch of work, nested at will: `step`, `generate`, `grade`, `train`, `sync_weights`, `eval`.

        `trajectories` > 0 says that it collects that many; their count starts anew.
        """
        outer = _inside.get()
        phase = self.state.enter(name, trajectories, self._clock(), outer)
        _inside.set(phase)
        _log.info(text.started_line(name))
        if trajectories:
            self._view.start_phase()
        self.show()
        try:
            yield
        finally:
            _inside.set(outer)
            cost_s = self.state.leave(phase, self._clock())
            _log.info(text.finished_line(name, cost_s))
            self._on_phase(name, cost_s)

    def trajectory(self, status: str, tokens: int = 0) -> None:
        """Counts a trajectory that has ended; `tokens` were sampled for it, and feed the rate."""
        self.state.counts[str(status)] += 1
        self.state.tokens += tokens
        self.show()

    def detail(self, record: Callable[[], Mapping[str, Any]]) -> None:
        """Shows a line about a trajectory that has ended, if that much is asked for; its record is made then only."""
        if self._verbosity is Verbosity.debug:
            self.line(text.trajectory_line(record()))

    def show(self) -> None:
        """Shows that the state has changed."""
        if not self._is_quiet:
            self._view.refresh()

    def step_done(self, record: Mapping[str, Any]) -> None:
        """Shows the step's record as `steps.jsonl` keeps it: one lasting line, and another where nothing
        was learned. `run.log` has all figures.
        """
        took_s = self.state.finish_step(int(record.get("step") or self.state.done_steps + 1), self._clock())
        _log.info(text.average_line(record))
        details = text.step_details(record, self.state.total_steps, took_s)
        _log.info(details)
        shown = details
        if not self._verbosity.has_details:
            left_s = self.state.left_s(self._clock())
            shown = text.step_line(record, self.state.total_steps, took_s, self.state.held_out, left_s)
        self._print(shown)
        if reason := text.nothing_learned(record):
            self.line(reason)

    def eval_done(
        self,
        label: str,
        rate: float | None,
        num_samples: int,
        interval: tuple[float, float] | None = None,
        cut_reply_rate: float | None = None,
    ) -> None:
        """Shows an evaluation. `interval` is the 95 % one, of the rate."""
        self.state.held_out = rate
        self.line(text.eval_line(label, rate, num_samples, interval, cut_reply_rate))

    def line(self, line: str) -> None:
        """Shows what is said as a matter of course: not on a quiet console."""
        _log.info(line)
        self._print(line)

    def _print(self, line: str) -> None:
        if not self._is_quiet:
            self._view.line(line)

    def message(self, message: str) -> None:
        """Writes a lasting line in `run.log` and on any console, also on a quiet one."""
        _log.info(message)
        self._view.line(message)

    def __enter__(self) -> Self:
        self.state.step_started_s = self._clock()
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.stop()
