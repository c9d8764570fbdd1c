"""This module says what the loop of `job=sft` asks of what it imitates, whatever that is.

Invariants:
- The same configuration, data and state give the same examples for a step.
- A stage begins with a fresh optimizer and a learning rate of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swe_rl.algo.row import Ids, Mask
from swe_rl.trainer.schedule import Schedule

# These are the ids of one sequence, and the mask of what is learned of it.
IdsAndMask = tuple[Sequence[int] | Ids, Sequence[int] | Mask]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: the steps after `before`, so many as `steps`."""

    number: int
    before: int
    steps: int
    lr: float
    schedule: Schedule

    @property
    def last_step(self) -> int:
        return self.before + self.steps

    def lr_of(self, step: int) -> float:
        return self.lr * self.schedule.factor(step - self.before - 1)


class Imitated(Protocol):
    """What is imitated."""

    stages: Sequence[Stage]
    held_out: Sequence[IdsAndMask]

    def begin_stage(self, stage: Stage) -> None:
        """Is called before the first step of a stage."""
        ...

    def draw(self, step: int) -> list[IdsAndMask]:
        """Returns the sequences that a step trains."""
        ...

    def measures_after(self, step: int) -> bool:
        """Tells whether the loss on `held_out` is measured after a step; 0 is the start."""
        ...

    def state(self) -> Any:
        """Returns what a checkpoint keeps of the order, as JSON has it."""
        ...

    def restore(self, state: Any) -> None:
        """Goes to a state that a checkpoint kept. Raises UserError where it is one of other data."""
        ...

    def figures(self, losses: Sequence[float]) -> dict[str, float]:
        """Returns names for the mean losses at the ends of the stages."""
        ...
