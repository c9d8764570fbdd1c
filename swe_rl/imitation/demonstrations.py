"""This module has the scripted demonstrations of the warm start: first right ones only (the skill), then a beginner's
(the habits).

Invariants:
- The messages are exactly those of `agent=bash` on the embedded instances, to the last byte.
- A stage draws from a generator of its own, whose state is in a checkpoint.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swe_rl.agent.observation import NO_OUTPUT
from swe_rl.agent.prompts import system_prompt
from swe_rl.config.schema import Config
from swe_rl.env.bugs.demonstration import Demonstration, Demonstrator
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.facts.warm_start import updates_of
from swe_rl.imitation.source import IdsAndMask, Stage
from swe_rl.model.tiny import Messages, draw_batch
from swe_rl.trainer.schedule import Schedule

if TYPE_CHECKING:
    from swe_rl.model.chat import ChatRenderer


def demonstrate_conversation(demonstration: Demonstration, prompt: str) -> Messages:
    """Returns the conversation that `agent=bash` would have had."""
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": demonstration.statement}]
    for number, command in enumerate(demonstration.replies):
        messages.append({"role": "assistant", "content": f"```bash\n{command}\n```"})
        if number < len(demonstration.observations):
            messages.append({"role": "user", "content": demonstration.observations[number] or NO_OUTPUT})
    return messages


def demonstration_stages(config: Config) -> tuple[Stage, Stage]:
    """Returns the stages of the skill and of the habits."""
    sft = config.sft
    updates = updates_of(config)
    skill = Schedule(sft.lr_schedule, updates.warmup_steps, updates.steps, sft.lr_final_fraction)
    habits = Schedule(sft.lr_schedule, 0, updates.beginner_steps, sft.lr_final_fraction)
    return (
        Stage(1, 0, updates.steps, updates.lr, skill),
        Stage(2, updates.steps, updates.beginner_steps, sft.beginner_lr, habits),
    )


class Demonstrations:
    """Draws demonstrations without end. Nothing of them is held out."""

    def __init__(self, config: Config, renderer: "ChatRenderer") -> None:
        self.stages: Sequence[Stage] = demonstration_stages(config)
        self.held_out: Sequence[IdsAndMask] = ()
        self._renderer = renderer
        self._prompt = system_prompt(config.agent.system_prompt)
        self._seed = config.sft.seed
        self._tokens_per_batch = config.sft.tokens_per_batch
        right_fractions = (1.0, config.sft.right_fraction)
        self._demonstrators = [Demonstrator(PACKAGES / "train", right) for right in right_fractions]
        self._rng = random.Random()

    def begin_stage(self, stage: Stage) -> None:
        self._rng = random.Random(f"warm start/{self._seed + stage.number - 1}")

    def draw(self, step: int) -> list[IdsAndMask]:
        stage = next(stage for stage in self.stages if step <= stage.last_step)
        demonstrate = self._demonstrators[stage.number - 1].demonstrate
        drawn = draw_batch(
            lambda rng: demonstrate_conversation(demonstrate(rng), self._prompt),
            self._renderer,
            self._rng,
            self._tokens_per_batch,
        )
        return list(drawn)

    def measures_after(self, step: int) -> bool:
        return False

    def state(self) -> Any:
        version, internal, gauss = self._rng.getstate()
        return [version, list(internal), gauss]

    def restore(self, state: Any) -> None:
        version, internal, gauss = state
        self._rng.setstate((version, tuple(internal), gauss))

    def figures(self, losses: Sequence[float]) -> dict[str, float]:
        skill, beginner = losses
        return {"loss_skill": skill, "loss_beginner": beginner}
