"""Where the run is: step, phase, trajectories so far, time left.

Invariants:
- No clock of its own: every method takes the time, in seconds of any steady clock.
- Counts belong to the phase that collects; the next collecting phase starts at zero.
- What is read for showing may be read by another thread: each reader takes its own copy first.
"""

from collections import Counter
from dataclasses import dataclass, field

from swe_rl.logger import progress_text as text


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
