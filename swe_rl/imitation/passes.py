"""This module puts examples into an order: passes over all of them, each shuffled anew.

Invariants:
- What a step trains depends on the seed, the examples and the step's number alone. So a resumed run needs no state but
  the proof that the examples are the same.
- A batch that begins at the end of a pass goes on at the beginning of the next one.
"""

import random
from collections.abc import Sequence
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.facts.warm_start import steps_per_pass, updates_of
from swe_rl.imitation.data import Data
from swe_rl.imitation.record import KEY, DataError
from swe_rl.imitation.source import IdsAndMask, Stage
from swe_rl.trainer.schedule import Schedule


class Passes:
    """Draws the examples of `data` in passes."""

    def __init__(self, config: Config, data: Data) -> None:
        sft = config.sft
        updates = updates_of(config, len(data.trained))
        schedule = Schedule(sft.lr_schedule, updates.warmup_steps, updates.steps, sft.lr_final_fraction)
        self.stages: Sequence[Stage] = (Stage(1, 0, updates.steps, updates.lr, schedule),)
        self.held_out: Sequence[IdsAndMask] = [(example.token_ids, example.loss_mask) for example in data.held_out]
        self._trained = data.trained
        self._sha256 = data.sha256()
        self._seed = sft.seed
        self._batch = sft.examples_per_batch
        self._steps_per_pass = steps_per_pass(sft, len(data.trained))

    def begin_stage(self, stage: Stage) -> None:
        """Does nothing: there is one stage."""

    def draw(self, step: int) -> list[IdsAndMask]:
        first = (step - 1) * self._batch
        chosen = [self._example(number) for number in range(first, first + self._batch)]
        drawn = [(example.token_ids, example.loss_mask) for example in chosen]
        return sorted(drawn, key=lambda row: len(row[0]))

    def _example(self, number: int) -> Any:
        passed, place = divmod(number, len(self._trained))
        return self._trained[self._order(passed)[place]]

    def _order(self, passed: int) -> list[int]:
        order = list(range(len(self._trained)))
        random.Random(f"imitation/{self._seed}/{passed}").shuffle(order)
        return order

    def measures_after(self, step: int) -> bool:
        if not self.held_out:
            return False
        return step % self._steps_per_pass == 0 or step == self.stages[0].last_step

    def state(self) -> Any:
        return {"examples": len(self._trained), "sha256": self._sha256}

    def restore(self, state: Any) -> None:
        if state != self.state():
            before: Any = "other"
            if isinstance(state, dict):
                before = state.get("examples")
            raise DataError(
                f"{KEY}: the examples are others than when this run began ({before} then, {len(self._trained)} now, or "
                "other tokens). Give the files back as they were, or begin a new run with trainer.resume=none."
            )

    def figures(self, losses: Sequence[float]) -> dict[str, float]:
        return {"loss": losses[0]}
