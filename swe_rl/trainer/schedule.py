"""Gives learning rates over a run: a linear warm-up, then constant, or down a line or half a cosine.

Invariants:
- A factor depends on the number of steps that are done and on the configuration alone, so a resumed run goes on where
  it was, in both modes of rollouts.
- The first step learns: a warm-up begins above 0. Decay that ends at 0 gets there after the last step, not before it.
"""

import math
from dataclasses import dataclass

from swe_rl.config.choices import LrSchedule
from swe_rl.config.schema import TrainerConfig


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule. `total_steps` has warm-up and decay together; the decay ends at `final_fraction` of the peak."""

    kind: LrSchedule
    warmup_steps: int
    total_steps: int
    final_fraction: float = 0.0

    @classmethod
    def of(cls, config: TrainerConfig, later_steps: int = 0) -> "Schedule":
        """Returns the schedule of what begins to learn `later_steps` after the run's begin, and ends with it."""
        return cls(config.lr_schedule, config.warmup_steps, config.steps - later_steps, config.lr_final_fraction)

    def factor(self, steps_done: int) -> float:
        """Returns what the peak is multiplied with in the step after these; it stays at its last value beyond the
        total.
        """
        if steps_done < self.warmup_steps:
            return (steps_done + 1) / self.warmup_steps
        if self.kind is LrSchedule.constant:
            return 1.0
        decay_steps = max(1, self.total_steps - self.warmup_steps)
        progress = min(1.0, (steps_done - self.warmup_steps) / decay_steps)
        if self.kind is LrSchedule.linear:
            left = 1.0 - progress
        else:
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.final_fraction + (1.0 - self.final_fraction) * left
