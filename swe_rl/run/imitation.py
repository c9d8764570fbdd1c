"""Runs the steps of `job=sft` one after another: examples, an update, its record, checkpoints between them.

Invariants:
- A step is recorded before its checkpoint is written, as in `loop`: the newest checkpoint counts.
- What a step computes depends on the configuration, the data and the seed only. A checkpoint has the state of what is
  imitated, so a resumed run repeats what an uninterrupted one computes.
- Each stage begins with a fresh optimizer and a learning rate of its own.
- The loss on examples that are held out is measured between steps, and changes nothing.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from swe_rl.algo.row import Row
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.schema import Config
from swe_rl.imitation.source import IdsAndMask, Imitated, Stage
from swe_rl.logger.jsonl import iter_jsonl, read_events
from swe_rl.run.event_loop import run_uninterrupted
from swe_rl.run.learner import load_newest
from swe_rl.run.session import RunSession
from swe_rl.trainer.trainer import TrainsPolicy

_REPORT_EVERY_STEPS = 50
_HELD_OUT_EVENT = "heldout_loss"


def rows_of(drawn: Sequence[IdsAndMask], version: int) -> list[Row]:
    """Returns one group of rows, whose masked tokens all have the advantage 1."""
    rows = []
    for number, (ids, mask) in enumerate(drawn):
        learned = np.asarray(mask, np.bool_)
        tokens = int(np.count_nonzero(learned))
        rows.append(
            Row(
                trajectory_id=f"{number:06d}",
                group_id="demonstrations",
                token_ids=np.asarray(ids, np.int32),
                loss_mask=learned,
                rollout_logprobs=None,
                advantage=np.ones(tokens, np.float32),
                weight_versions=np.full(tokens, version, np.int32),
            )
        )
    return rows


class Imitation:
    """The loop of `job=sft`. `config` is the run's own, with `model.path` the model that it begins with."""

    def __init__(
        self, config: Config, session: RunSession, imitated: Imitated, trainer: TrainsPolicy, hash_of_config: str
    ) -> None:
        self._config = config
        self._session = session
        self._imitated = imitated
        self._trainer = trainer
        self._hash = hash_of_config
        self._stages = imitated.stages
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
        """Goes to the newest checkpoint, or to the start. Raises CorruptCheckpointError, UserError."""
        session = self._session
        self.step, order = load_newest(self._trainer, session, self._hash, self._config.trainer.keep_checkpoints)
        if order is not None:
            self._imitated.restore(order)
        session.steps.truncate_after(self.step)
        losses = ((record["step"], record["loss"]) for record in iter_jsonl(session.folder.steps_jsonl))
        # JSON has no NaN.
        self._losses = {step: float("nan") if loss is None else loss for step, loss in losses}
        self.saved_step = self._began = session.progress.state.done_steps = self.step
        session.progress.message(f"continues after step {self.step}: {session.folder.path}")

    async def run(self) -> None:
        """Runs to the last step; an interruption waits for the end of the one that is under way."""
        if self.step == 0:
            await run_uninterrupted(asyncio.to_thread(self._measure_at_start))
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
        self._trainer.save(
            self._session.folder.checkpoints,
            step=self.step,
            weight_version=self.step,
            data_order=self._imitated.state(),
            config=flatten_config(self._config),
            hash_of_config=self._hash,
            keep=self._config.trainer.keep_checkpoints,
        )
        self.saved_step = self.step

    def figures(self) -> dict[str, Any]:
        """Returns the seed, each stage's mean loss over its last steps, and the losses on what was held out."""
        losses = [self._mean_loss(stage, stage.last_step) for stage in self._stages]
        return {"seed": self._config.sft.seed, **self._imitated.figures(losses), **self._held_out_figures()}

    def _held_out_figures(self) -> dict[str, Any]:
        if self._imitated.held_out:
            events = read_events(self._session.folder.events_jsonl, _HELD_OUT_EVENT)
        else:
            events = []
        # A step that was done twice was measured twice.
        measured = {event["step"]: event["loss"] for event in events if event["step"] <= self.step}
        if not measured:
            return {}
        lowest = min(measured, key=lambda step: (measured[step], step))
        return {
            "heldout_examples": len(self._imitated.held_out),
            "heldout_loss_before": measured[min(measured)],
            "heldout_loss_after": measured[max(measured)],
            "heldout_loss_lowest": measured[lowest],
            "heldout_loss_lowest_step": lowest,
        }

    def _measure_at_start(self) -> None:
        with self._turn:
            if self._imitated.measures_after(0):
                self._measure_held_out()

    def _measure_held_out(self) -> float:
        """Returns the mean -log policy in nats over the learned tokens of all examples that are held out."""
        rows = rows_of(self._imitated.held_out, self.step)
        with self._session.progress.phase("heldout_loss"):
            logprobs = self._trainer.row_logprobs(rows)
        values = np.concatenate([np.asarray(of_row, np.float64) for of_row in logprobs])
        loss = float(-values.mean())
        self._session.events.write(_HELD_OUT_EVENT, step=self.step, loss=loss, tokens=len(values), examples=len(rows))
        self._session.progress.line(f"after step {self.step}: held-out loss {loss:.4f} ({len(rows)} conversations)")
        return loss

    def _one_step(self) -> None:
        with self._turn:
            self._learn()

    def _learn(self) -> None:
        step = self.step + 1
        began_s = time.monotonic()
        stage = next(stage for stage in self._stages if step <= stage.last_step)
        if step == stage.before + 1:
            self._imitated.begin_stage(stage)
            if stage.before:
                # Moments of the stage before would push the weights in the first steps of this one.
                self._trainer.forget_moments()
        drawn = self._imitated.draw(step)
        metrics = self._trainer.train_step(rows_of(drawn, step - 1), step, stage.lr_of(step))
        self.step = step
        fed_tokens = sum(len(ids) for ids, _ in drawn)
        step_s = time.monotonic() - began_s
        record = {"stage": stage.number, "fed_tokens": fed_tokens, "trained_tokens_per_s": fed_tokens / step_s}
        measured = {key: value for key, value in asdict(metrics).items() if value is not None}
        if self._imitated.measures_after(step):
            record["heldout_loss"] = self._measure_held_out()
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
                f"stage {stage.number} of {len(self._stages)}: {done}/{stage.steps}, "
                f"loss {self._mean_loss(stage, step):.4f}, {self._tokens / elapsed_s:,.0f} trained tokens/s, "
                f"{left_s:.0f} s left"
            )
        session.report.step_done()

    def _mean_loss(self, stage: Stage, last: int) -> float:
        """Returns the mean loss since the report before; NaN for a stage without steps."""
        first = stage.before + 1 + (last - stage.before - 1) // _REPORT_EVERY_STEPS * _REPORT_EVERY_STEPS
        losses = [self._losses[step] for step in range(max(first, stage.before + 1), last + 1)]
        if losses:
            return sum(losses) / len(losses)
        return float("nan")
