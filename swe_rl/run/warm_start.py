"""Runs the steps of `job=sft` one after another: demonstrations, an update, its record, checkpoints between them.

Invariants:
- A step is recorded before its checkpoint is written, as in `loop`: the newest checkpoint counts.
- What a step computes depends on the configuration and the seed only. A checkpoint has the state of the generator that
  draws demonstrations, so a resumed run repeats what an uninterrupted one computes.
- Each stage begins with a fresh optimizer and a learning rate of its own.
"""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swe_rl.agent.observation import NO_OUTPUT
from swe_rl.agent.prompts import system_prompt
from swe_rl.algo.row import Row
from swe_rl.config.compose import flatten_config
from swe_rl.config.schema import Config
from swe_rl.env.bugs.demonstration import Demonstration, Demonstrator
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.model.tiny import IdsAndMask, Messages, draw_batch
from swe_rl.run.event_loop import run_uninterrupted
from swe_rl.run.learner import load_newest
from swe_rl.run.session import RunSession
from swe_rl.trainer.protocol import TrainsPolicy
from swe_rl.trainer.schedule import Schedule

if TYPE_CHECKING:
    from swe_rl.model.chat import ChatRenderer

_REPORT_EVERY_STEPS = 50


def demonstrate_conversation(demonstration: Demonstration, prompt: str) -> Messages:
    """Returns the conversation that `agent=bash` would have had."""
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": demonstration.statement}]
    for number, command in enumerate(demonstration.replies):
        messages.append({"role": "assistant", "content": f"```bash\n{command}\n```"})
        if number < len(demonstration.observations):
            messages.append({"role": "user", "content": demonstration.observations[number] or NO_OUTPUT})
    return messages


def rows_of(drawn: Sequence[IdsAndMask], version: int) -> list[Row]:
    """Returns one group of rows, whose masked tokens all have the advantage 1."""
    return [
        Row(
            trajectory_id=f"{number:06d}",
            group_id="demonstrations",
            token_ids=np.asarray(ids, np.int32),
            loss_mask=np.asarray(mask, np.bool_),
            rollout_logprobs=None,
            advantage=np.ones(sum(mask), np.float32),
            weight_versions=np.full(sum(mask), version, np.int32),
        )
        for number, (ids, mask) in enumerate(drawn)
    ]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: the steps after `before`, so many as `steps`."""

    number: int
    before: int
    steps: int
    lr: float
    schedule: Schedule
    right_fraction: float

    def lr_of(self, step: int) -> float:
        return self.lr * self.schedule.factor(step - self.before - 1)


def sft_stages(config: Config) -> tuple[Stage, Stage]:
    sft = config.sft
    skill = Schedule(sft.lr_schedule, sft.warmup_steps, sft.steps, sft.lr_final_fraction)
    habits = Schedule(sft.lr_schedule, 0, sft.beginner_steps, sft.lr_final_fraction)
    return (
        Stage(1, 0, sft.steps, sft.lr, skill, right_fraction=1.0),
        Stage(2, sft.steps, sft.beginner_steps, sft.beginner_lr, habits, sft.right_fraction),
    )


class WarmStart:
    """The loop of `job=sft`. `config` is the run's own, with `model.path` the model that it begins with."""

    def __init__(
        self, config: Config, session: RunSession, renderer: "ChatRenderer", trainer: TrainsPolicy, hash_of_config: str
    ) -> None:
        self._config = config
        self._session = session
        self._renderer = renderer
        self._trainer = trainer
        self._hash = hash_of_config
        self._stages = sft_stages(config)
        self._prompt = system_prompt(config.agent.system_prompt)
        self._demonstrators = [Demonstrator(PACKAGES / "train", stage.right_fraction) for stage in self._stages]
        self._rng = random.Random()
        self.step = self.saved_step = self._began = 0
        self._losses: dict[int, float] = {}
        self._turn = threading.RLock()
        self._began_s = time.monotonic()
        self._tokens = 0
        self.done_at_s: dict[int, float] = {}

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self._stages)

    def resume(self) -> None:
        """Goes to the newest checkpoint, or to the start. Raises CorruptCheckpointError."""
        session = self._session
        self.step, order = load_newest(self._trainer, session, self._hash, self._config.trainer.keep_checkpoints)
        if order is not None:
            version, internal, gauss = order
            self._rng.setstate((version, tuple(internal), gauss))
        session.steps.truncate_after(self.step)
        losses = ((record["step"], record["loss"]) for record in iter_jsonl(session.folder.steps_jsonl))
        # JSON has no NaN.
        self._losses = {step: float("nan") if loss is None else loss for step, loss in losses}
        self.saved_step = self._began = session.progress.state.done_steps = self.step
        session.progress.message(f"continues after step {self.step}: {session.folder.path}")

    async def run(self) -> None:
        """Runs to the last step; an interruption waits for the end of the one that is under way."""
        while self.step < self.total_steps:
            await run_uninterrupted(asyncio.to_thread(self._one_step))
        await asyncio.to_thread(self._trainer.wait)

    def save(self) -> None:
        """Saves a checkpoint of the last step, unless it has one. Raises CheckpointWriteError.

        It waits for the end of a step that is under way: the end of the loop does not end the thread of a step.
        """
        with self._turn:
            if self.step != self.saved_step:
                self._save()

    def _save(self) -> None:
        version, internal, gauss = self._rng.getstate()
        self._trainer.save(
            self._session.folder.checkpoints,
            step=self.step,
            weight_version=self.step,
            data_order=[version, list(internal), gauss],
            config=flatten_config(self._config),
            hash_of_config=self._hash,
            keep=self._config.trainer.keep_checkpoints,
        )
        self.saved_step = self.step

    def figures(self) -> dict[str, Any]:
        """Returns the seed, and each stage's mean loss over its last steps."""
        skill, beginner = (self._mean_loss(stage, stage.before + stage.steps) for stage in self._stages)
        return {"seed": self._config.sft.seed, "loss_skill": skill, "loss_beginner": beginner}

    def _one_step(self) -> None:
        with self._turn:
            self._learn()

    def _learn(self) -> None:
        step = self.step + 1
        began_s = time.monotonic()
        stage = next(stage for stage in self._stages if step <= stage.before + stage.steps)
        if step == stage.before + 1:
            self._rng = random.Random(f"warm start/{self._config.sft.seed + stage.number - 1}")
            if stage.before:
                # Moments of the stage before would push the weights in the first steps of this one.
                self._trainer.forget_moments()
        demonstrate = self._demonstrators[stage.number - 1].demonstrate
        drawn = draw_batch(
            lambda rng: demonstrate_conversation(demonstrate(rng), self._prompt),
            self._renderer,
            self._rng,
            self._config.sft.tokens_per_batch,
        )
        metrics = self._trainer.train_step(rows_of(drawn, step - 1), step, stage.lr_of(step))
        self.step = step
        fed_tokens = sum(len(ids) for ids, _ in drawn)
        step_s = time.monotonic() - began_s
        record = {"stage": stage.number, "fed_tokens": fed_tokens, "trained_tokens_per_s": fed_tokens / step_s}
        measured = {key: value for key, value in asdict(metrics).items() if value is not None}
        self._record(stage, measured | record | {"step_s": step_s})
        every = self._config.trainer.checkpoint_every_steps
        if step == self.total_steps or (every and step % every == 0):
            self.save()

    def _record(self, stage: Stage, record: dict[str, Any]) -> None:
        session = self._session
        step = self.step
        session.steps.append(record)
        session.mirrors.log(record, step)
        session.status.heartbeat(step)
        session.progress.state.done_steps = step
        self.done_at_s[step] = time.monotonic()
        self._losses[step] = record["loss"]
        self._tokens += record["fed_tokens"]
        done = step - stage.before
        if done % _REPORT_EVERY_STEPS == 0 or done == stage.steps:
            elapsed_s = time.monotonic() - self._began_s
            left_s = (stage.steps - done) * elapsed_s / (step - self._began)
            session.progress.line(
                f"stage {stage.number} of 2: {done}/{stage.steps}, loss {self._mean_loss(stage, step):.4f}, "
                f"{self._tokens / elapsed_s:,.0f} trained tokens/s, {left_s:.0f} s left"
            )
        session.report.step_done()

    def _mean_loss(self, stage: Stage, last: int) -> float:
        """Returns the mean loss since the report before; NaN for a stage without steps."""
        first = stage.before + 1 + (last - stage.before - 1) // _REPORT_EVERY_STEPS * _REPORT_EVERY_STEPS
        losses = [self._losses[step] for step in range(max(first, stage.before + 1), last + 1)]
        return sum(losses) / len(losses) if losses else float("nan")
