"""Runs a run's steps one after another: rollouts, what is learned from them, records, evaluations between them.

Invariants:
- Training, weight sync, the step's record and its checkpoint are one unit: an interruption waits for its end.
- A step is recorded before its checkpoint is written: whatever the moment of a kill, the newest checkpoint counts.
- What a step computes depends on the configuration, the seed and the weights only, never on timing, so that a resumed
  run repeats what an uninterrupted one computes. With the embedded engine that is so to the last digit, also where its
  log-probabilities are in the loss (a correction, a mask); servers round by what else is in their batch, and then a
  correction's weights, and what follows, differ by about as much. With `trainer.max_staleness_steps` > 0 the first
  steps after a resume are sampled with newer weights than in an uninterrupted run; above 1, timing decides how new.
- Ahead of the trainer, rollouts of step s are begun with the weights of step s - 1 - `ahead` or newer, and no weights
  change while they run: every token of a step is of one version. With `ahead` = 1 it is s - 2 exactly.
- With `rollout.mode=stream` nobody waits for a step's trajectories: a step trains the oldest groups that are complete
  (run/stream), and new weights enter the engines while others are under way. What a step trains then depends on timing.
- There an evaluation goes on beside the steps after the one that it measures. The engines keep its weights until it
  ends. Meanwhile there is no checkpoint of a later step, so that whoever resumes has the evaluation or makes it; one of
  that step is written before. A step that is evaluated itself waits for the evaluation before it.
- At most `ahead` steps are sampled and not trained. The trainer learns one step at a time, in order; its weights are
  read between two steps only. Whatever fails ends both sides, and its own error is raised.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from swe_rl.algo.foreign.advantage import make_advantage
from swe_rl.config.choices import RolloutMode
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.facts.schedule import rollout_at
from swe_rl.files.kill_point import kill_point
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.rollout.batch import learned_numbers, rollout_numbers, set_advantages
from swe_rl.rollout.counts import groups_of
from swe_rl.rollout.rows import with_current_advantages
from swe_rl.run.event_loop import run_uninterrupted
from swe_rl.run.rollouts import Rollouts, SampledStep
from swe_rl.run.session import RunSession
from swe_rl.run.stream import GroupStream, token_staleness

if TYPE_CHECKING:
    from swe_rl.run.components import Components  # built elsewhere: a step only uses them
    from swe_rl.run.learner import Learner, NoLearner


class Run:
    """A run. Raises UserError where the training split is too small for a step."""

    def __init__(
        self, config: Config, session: RunSession, parts: "Components", learner: "Learner | NoLearner"
    ) -> None:
        self._config = config
        self._session = session
        self._learner = learner
        trains = Part.trainer in started_parts(config)
        self._advantage = make_advantage(config.advantage, config.algo) if trains else None
        self._rollouts = Rollouts(config, session, parts, learner.failure)
        streams = config.rollout.mode is RolloutMode.stream
        ahead = config.trainer.max_staleness_steps
        self._stream = GroupStream(config, self._rollouts, ahead=ahead) if streams else None
        self._order = self._rollouts.sampler.state()  # It is the order after the last step that is done.
        # These are the last step that is done, and the last that is written down.
        self.step = self._recorded_step = 0
        self._covered_step = 0  # It is the newest checkpoint's step; without a trainer the last step.
        self._evaluating: int | None = None  # An evaluation keeps the weights of this step in the engines.
        self._evaluation: asyncio.Task[None] | None = None
        self._trainer = asyncio.Lock()  # It is held while the trainer learns, or its weights are read.
        self._owes_checkpoint = False
        # The weights are changing, or an end that did not wait tore that off.
        self._is_learning = False
        # One is of the time since the step before, the other of the last checkpoint.
        self._sync_s = self._checkpoint_s = 0.0
        self._step_began_s = 0.0
        self.done_at_s: dict[int, float] = {}  # These are monotonic seconds of the steps that were done here.

    def resume(self) -> None:
        """Goes back to the last step that counts, or to the start. Raises CorruptCheckpointError and
        OtherInstancesError."""
        self.step, order = self._learner.go_back()
        if order is not None:
            order = self._rollouts.carry_over(order)
        if self._learner.evaluates:
            self._rollouts.carry_over_held_out()
        self._recorded_step = self._covered_step = self.step
        if self._stream is not None:
            self._order = self._stream.restored(order, self.step)
        else:
            if order is not None:
                self._rollouts.sampler.restore(order)
            self._order = self._rollouts.sampler.state()
        self._session.events.write("went_back", step=self.step)
        kill_point("went_back")
        self._session.steps.truncate_after(self.step)
        kill_point("steps_taken_back")
        self._forget()
        self._session.progress.state.done_steps = self.step
        self._session.progress.message(f"continues after step {self.step}: {self._session.folder.path}")

    def _forget(self) -> None:
        """Forgets traces that are of no step that counts, and of no group that will be trained."""
        trained: set[str] | None = None
        queued: set[str] = set()
        if self._stream is not None:
            records = iter_jsonl(self._session.folder.steps_jsonl)
            trained = {name for record in records for name in record.get("groups", ())}
            queued = self._stream.whole_groups()
        evaluation = not self.is_evaluated()
        self._rollouts.forget_after(self.step, evaluation=evaluation, trained=trained, queued=queued)

    def is_evaluated(self) -> bool:
        """Tells whether the weights of now were evaluated; an evaluation that the run went back behind
        does not count.
        """
        return self.step in {numbers["step"] for numbers in self._session.evals()}

    async def run(self) -> None:
        """Runs to the last step, from the one after `step`."""
        steps = self._config.trainer.steps
        ahead = self._learner.ahead
        await self._learner.refresh(self.step)
        if self._stream is not None and self.step < steps:
            await self._flow(self._stream, steps)
        await self.evaluate_when_due()
        if ahead and self.step < steps:
            self._step_began_s = time.monotonic()
            await Pipeline(self, ahead=ahead).run(self.step + 1, steps)
        while self.step < steps:
            await self.one_step()
            await self.evaluate_when_due()
        await asyncio.to_thread(self._learner.wait)
        await asyncio.to_thread(self._rollouts.forget_through, steps)
        if self._stream is not None:
            await asyncio.to_thread(self._stream.ended)

    async def _flow(self, stream: GroupStream, steps: int) -> None:
        """Trains the oldest complete groups, step by step, while others are sampled."""
        async with stream.flowing(self.step):
            while self.step < steps:
                if self.evaluation_is_due:
                    self._evaluating = self.step
                    self._evaluation = stream.flow.start(self._evaluate_beside(self.step, stream))
                self._step_began_s = time.monotonic()
                with self._session.progress.phase("step"):
                    item = await stream.take(self.step + 1)
                    if self._evaluates(self.step + 1) and self._evaluation is not None:
                        waited_s = time.monotonic()
                        await asyncio.wait({self._evaluation})
                        item.times_s["trainer_idle_s"] += time.monotonic() - waited_s
                    try:
                        await self._learner.pause(self.step + 1, item.times_s)
                    finally:
                        await run_uninterrupted(self._finish_alone(self.step + 1, item))

    async def _evaluate_beside(self, step: int, stream: GroupStream) -> None:
        """Gives the engines what the trainer has meanwhile made of its weights afterwards. Raises RolloutError."""
        await self._learner.keep(True)
        await self._rollouts.evaluate(step, stream.flow.places)
        self._evaluating = None  # From here on a step's end sends its weights itself.
        await self._learner.keep(False)
        await run_uninterrupted(self._catch_up(stream))

    async def _catch_up(self, stream: GroupStream) -> None:
        async with self._trainer:
            self._sync_s += await self._learner.refresh(self.step)
            stream.flow.sent()
            await self._checkpoint()

    async def _finish_alone(self, step: int, item: SampledStep) -> None:
        async with self._trainer:
            await self._finish(step, item, ahead=False)

    @property
    def evaluation_is_due(self) -> bool:
        """True before the first step, after the last one, and every `eval_every_steps`, from `eval_from_step` on.
        Each is due once, also over a resume."""
        return self._evaluates(self.step) and not self.is_evaluated()

    def _evaluates(self, step: int) -> bool:
        config = self._config.trainer
        due = bool(config.eval_every_steps) and step % config.eval_every_steps == 0
        due = due or step in (0, config.steps)
        return self._learner.evaluates and due and step >= config.eval_from_step

    async def evaluate_when_due(self) -> None:
        if self.evaluation_is_due:
            await self._rollouts.evaluate(self.step)

    async def one_step(self) -> None:
        step = self.step + 1
        self._step_began_s = time.monotonic()
        with self._session.progress.phase("step"):
            item = await self.sample(step)
            try:
                await self._learner.pause(step, item.times_s)
            # This is written also where the step was cut short: the rollouts are done.
            finally:
                await run_uninterrupted(self._finish(step, item, ahead=False))

    async def sample(self, step: int) -> SampledStep:
        """Returns the step's rollouts, with the weights that the engines hold."""
        return await self._rollouts.sample(step)

    async def learn(self, step: int, item: SampledStep) -> None:
        """Trains on rollouts of older weights, while others are sampled."""
        await run_uninterrupted(self._finish(step, item, ahead=True))
        self._step_began_s = time.monotonic()

    async def refresh(self) -> None:
        """Gives the weights of the last step to the engines, unless they have them."""
        self._sync_s += await self._learner.refresh(self.step)

    @property
    def served(self) -> int:
        """The step whose weights the engines hold."""
        return self._learner.served

    async def _finish(self, step: int, item: SampledStep, *, ahead: bool) -> None:
        """Learns from a step's rollouts, and writes all that is written of the step."""
        algo = self._config.algo
        rollout = self._config.rollout
        learner = self._learner
        collected = item.collected
        times_s = item.times_s
        # Rows are made once, and before there are advantages: those may take the KL of these very rows.
        rows, mismatch = await asyncio.to_thread(self._rollouts.rows, collected)
        record: dict[str, Any] = {"step": step, **rollout_numbers(collected, times_s["generate_s"]), **times_s}
        kl_sums = await learner.begin(rows)
        record["degenerate_groups"] = set_advantages(
            collected.trajectories,
            algo,
            kl_sums,
            rollout_at(rollout, step).max_trajectory_tokens,
            rollout.turn_rewards,
            self._advantage,
            step=step,
        )
        record |= learned_numbers(collected.trajectories, algo) | item.facts
        record["resampled_groups"] = len(groups_of(collected.trajectories)) - rollout.prompts_per_step
        rows = with_current_advantages(rows, collected.trajectories)
        self._is_learning = True
        record |= mismatch | await learner.train(rows, step)
        self._is_learning = False
        self.step = step
        self._order = item.order
        if self._stream is not None:
            self._stream.flow.trained()
            record |= token_staleness(rows, learner.version(step - 1))
        if not ahead and self._evaluating is None:
            self._sync_s += await learner.refresh(step)
            if self._stream is not None:
                self._stream.flow.sent()
        sync_s = self._sync_s
        self._sync_s = 0.0
        record |= learner.facts(step, self._order, sync_s, self._checkpoint_s)
        record["step_s"] = time.monotonic() - self._step_began_s
        kill_point("weights_synced")
        await asyncio.to_thread(self._rollouts.keep_rows, step, rows)
        await asyncio.to_thread(self._rollouts.record, step, collected)
        self._record(step, record)
        # The record comes first: a checkpoint whose step nobody knows is not taken, and has pruned the one before it.
        await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._checkpoint_s = await asyncio.to_thread(self._save_when_due)
        if self._checkpoint_s or not self._learner.evaluates:
            await asyncio.to_thread(self._covered, self.step)

    def _covered(self, step: int) -> None:
        """Notes that a checkpoint has the last step: what only those before the newest two would need goes."""
        self._rollouts.forget_through(self._covered_step)
        self._covered_step = step
        if self._stream is not None:
            self._stream.saved(self._order)

    def _record(self, step: int, record: dict[str, Any]) -> None:
        session = self._session
        session.steps.append(record)
        self._recorded_step = step
        kill_point("step_recorded")
        self.done_at_s[step] = time.monotonic()
        session.step_done(record)

    def _save_when_due(self) -> float:
        config = self._config.trainer
        due = config.checkpoint_every_steps and self.step % config.checkpoint_every_steps == 0
        due = due or self._owes_checkpoint or (self._stream is not None and self.evaluation_is_due)
        if not due and self.step != config.steps:
            return 0.0
        self._owes_checkpoint = not self._may_save
        return self.save()

    @property
    def _may_save(self) -> bool:
        """True unless the step is not recorded, follows one whose evaluation is under way, or its weights change."""
        recorded = self.step == self._recorded_step and not self._is_learning
        return recorded and self._evaluating in (None, self.step)

    def save(self) -> float:
        """Saves a checkpoint of the last step, unless it has one, or may have none. Returns seconds.

        Raises CheckpointWriteError.
        """
        return self._learner.save(self.step, self._order) if self._may_save else 0.0

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint, which may be older than `step`; 0: there is none."""
        return self._learner.saved_step


Item = TypeVar("Item")


class OverlappedWork(Protocol[Item]):
    """The work that a loop does in two tasks at once."""

    async def sample(self, step: int) -> Item:
        """Returns the step's rollouts, with the weights that the engines hold."""
        ...

    async def learn(self, step: int, item: Item) -> None:
        """Trains on them and records the step; not cut short."""
        ...

    async def refresh(self) -> None:
        """Gives the trainer's weights to the engines, unless they have them."""
        ...

    async def evaluate_when_due(self) -> None: ...

    @property
    def served(self) -> int:
        """The version of the weights that the engines hold."""
        ...

    @property
    def evaluation_is_due(self) -> bool: ...


class Pipeline:
    """Runs the steps `first` to `last` once, in two tasks."""

    def __init__(self, work: OverlappedWork[Item], *, ahead: int) -> None:
        if ahead < 1:
            raise ValueError("a pipeline samples at least one step ahead")
        self._work = work
        self._ahead = ahead
        self._engines = asyncio.Lock()
        self._trainer = asyncio.Lock()
        self._sampled: asyncio.Queue[Item] = asyncio.Queue()
        self._learned = 0
        self._progress = asyncio.Condition()

    async def run(self, first: int, last: int) -> None:
        """Raises what `work` raised first."""
        self._learned = first - 1
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sample(first, last))
                group.create_task(self._learn(first, last))
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]
        if error is not None:
            # It ended the other side; its own words and its own cause matter.
            raise error

    async def _sample(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            async with self._engines:
                item = await self._work.sample(step)
            if step < last:
                await self._make_ready(step + 1)
            # It is not put in before: the trainer is idle while its weights are read.
            await self._sampled.put(item)

    async def _make_ready(self, step: int) -> None:
        """Waits until `step` may be sampled, then gives the engines the newest weights that can be had now."""
        needed = step - 1 - self._ahead
        async with self._progress:
            await self._progress.wait_for(lambda: self._learned >= needed)
        async with self._engines:
            if self._trainer.locked() and self._work.served >= needed:
                # The trainer is learning, and what the engines have is new enough.
                return
            async with self._trainer:
                await self._work.refresh()

    async def _learn(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            item = await self._sampled.get()
            async with self._trainer:
                await self._work.learn(step, item)
            async with self._progress:
                self._learned = step
                self._progress.notify_all()
            if self._work.evaluation_is_due:
                async with self._engines, self._trainer:
                    await self._work.refresh()
                    await self._work.evaluate_when_due()
