"""The loop: rollouts, rows, policy updates, weights back into the engines, checkpoints.

Invariants:
- Where engines and trainer share GPUs, engines sleep from the end of the rollouts to the update (see engine/update).
- Training, weight sync, the step's record and its checkpoint are one unit: an interruption waits for its end.
- A step is recorded before its checkpoint is written: whatever the moment of a kill, the newest checkpoint counts.
- What a step computes depends on the configuration, the seed and the weights only, never on timing, so that a
  resumed run repeats what an uninterrupted one computes. With `trainer.max_staleness_steps` > 0 (see ahead) the first
  steps after a resume are sampled with newer weights than in an uninterrupted run; above 1, timing decides how new.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swe_rl.agent.protocol import AgentResult
from swe_rl.algo.row import Row
from swe_rl.config.choices import Capture, JobName, KlPlace
from swe_rl.config.compose import config_hash, flatten
from swe_rl.config.schema import Config
from swe_rl.engine.update import make_transfer, make_turns, update_engines
from swe_rl.engine.watch import watched
from swe_rl.env.instance import Instance
from swe_rl.errors import UserError
from swe_rl.gateway.trace import Trace
from swe_rl.host.kill_point import kill_point
from swe_rl.logger.events import read_events
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.resolved import headline, line_of
from swe_rl.rollout.batch import (
    count_tokens,
    groups_of,
    retokenized_rows,
    rollout_numbers,
    set_advantages,
    traced_rows,
)
from swe_rl.rollout.collect import Collected, require_few_failures, require_some_in_time
from swe_rl.rollout.evaluate import eval_numbers
from swe_rl.rollout.profile import program_events
from swe_rl.rollout.render import conversation_renderer
from swe_rl.rollout.resample import sampled
from swe_rl.rollout.retokenize import Mismatch
from swe_rl.rollout.sampler import PromptSampler, SamplerState
from swe_rl.rollout.trajectory import OUR_WORDS, Trajectory
from swe_rl.run.agreement import explained, require_agreement
from swe_rl.run.ahead import Pipeline
from swe_rl.run.components import Components
from swe_rl.run.resume import last_step, load_newest
from swe_rl.run.session import Session
from swe_rl.trainer.protocol import TrainsPolicy

_LOOK_S = 1.0  # between two looks at the trainer during rollouts
_EVALUATION = "eval-"  # in front of the split, in the names of an evaluation's trajectories


@dataclass(slots=True)
class Sampled:
    """A step's rollouts, before anything is learned from them."""

    collected: Collected
    order: SamplerState  # of the instances, after this step took its own
    times_s: dict[str, float]
    sync_s: float = 0.0  # with weights sampled ahead: what the update before them took


class Loop:
    """`trainer` is None for `job=rollout` and `job=eval`."""

    def __init__(self, config: Config, session: Session, parts: Components, trainer: TrainsPolicy | None) -> None:
        self._config = config
        self._session = session
        self._parts = parts
        self._trainer = trainer
        self._transfer = make_transfer(config, parts.engines, trainer) if trainer is not None else None
        self._turns = make_turns(config, parts.engines)
        self._instances = parts.env.instances(config.env.split)
        if len(self._instances) < config.rollout.prompts_per_step and config.job.name is not JobName.eval:
            raise UserError(
                f"rollout.prompts_per_step={config.rollout.prompts_per_step}, but env.split={config.env.split} has "
                f"only {len(self._instances)} instances; lower it, or choose more with env.dataset or env.instances"
            )
        self._sampler = PromptSampler(len(self._instances), config.trainer.seed)
        self._order = self._sampler.state()  # after the last step that is done
        self.step = 0  # the last one that is done
        self.served = -1  # the step whose weights the engines hold
        self._saved_step = self._recorded_step = 0
        self._sync_s = 0.0
        self._checkpoint_s = 0.0  # of the checkpoint after the step before
        self._step_began_s = 0.0
        self.done_at_s: dict[int, float] = {}  # monotonic; of the steps that this loop did

    def resume(self) -> None:
        """Goes back to the newest checkpoint of the run's folder, without a trainer to the last step that is written,
        or to the start. Raises CorruptCheckpointError."""
        if self._trainer is None:
            self.step, order = last_step(self._session.folder)
        else:
            self.step, order = load_newest(self._trainer, self._session.folder, config_hash(self._config))
            self._saved_step = self.step
        self._recorded_step = self.step
        if order is not None:
            self._sampler.restore(order)
        self._order = self._sampler.state()
        self._session.events.write("went_back", step=self.step)
        kill_point("went_back")
        self._session.steps.truncate_after(self.step)
        kill_point("steps_taken_back")
        stale = [name for name in self._parts.store.sessions() if _step_of(name) > self.step]
        if not self.is_evaluated():  # half of an evaluation is none
            self._session.folder.eval_trajectories(self.step).unlink(missing_ok=True)
            stale += [name for name in self._parts.store.sessions() if _is_evaluation(name, self.step)]
        self._parts.store.delete(stale)
        self._session.progress.state.done_steps = self.step
        self._session.progress.message(f"continues after step {self.step}: {self._session.folder.path}")

    def is_evaluated(self) -> bool:
        """Whether the weights of now were; an evaluation that the run went back behind does not count."""
        done: set[int] = set()
        for event in read_events(self._session.folder.events_jsonl):
            if event["event"] == "eval":
                done.add(event["step"])
            elif event["event"] == "went_back":
                done = {step for step in done if step <= event["step"]}
        return self.step in done

    async def run(self) -> None:
        config = self._config.trainer
        if self._trainer is not None:
            await self._sync_weights()
        await self.evaluate_when_due()
        if self._trainer is not None and config.max_staleness_steps and self.step < config.steps:
            self._step_began_s = time.monotonic()
            await Pipeline(self, ahead=config.max_staleness_steps).run(self.step + 1, config.steps)
        while self.step < config.steps:
            await self.one_step()
            await self.evaluate_when_due()
        if self._trainer is not None:
            await asyncio.to_thread(self._trainer.wait)

    @property
    def evaluation_is_due(self) -> bool:
        """Before the first step, after the last one, and every `eval_every_steps`; once each, also over a resume."""
        config = self._config.trainer
        due = bool(config.eval_every_steps) and self.step % config.eval_every_steps == 0
        return (due or self.step in (0, config.steps)) and not self.is_evaluated()

    async def evaluate_when_due(self) -> None:
        if self.evaluation_is_due:
            await self.evaluate()

    async def evaluate(self) -> None:
        """The held-out split under the weights of now."""
        session, config, split = self._session, self._config, self._config.env.eval_split
        instances = self._parts.env.instances(split)
        started_s = time.monotonic()
        with session.progress.phase("eval", trajectories=len(instances) * config.rollout.eval_n):
            collected = await self._collect(
                instances, f"{_EVALUATION}{split}", self.step, config.rollout.eval_n, config.rollout.eval_temperature
            )
        require_few_failures(collected.trajectories, config.rollout)
        whole, took_s = self._parts.env.split_instances(split), time.monotonic() - started_s
        numbers = eval_numbers(collected, step=self.step, split=split, eval_s=took_s, split_instances=whole)
        self._count_tokens(collected)
        session.steps.append_trajectories(self.step, _records(collected), evaluation=True, ours=OUR_WORDS)
        kill_point("eval_trajectories_written")
        session.events.write("eval", **numbers)
        kill_point("eval_recorded")
        session.progress.eval_done(f"{headline(numbers)}, after step {self.step}", *line_of(numbers))

    async def _collect(
        self, instances: Sequence[Instance], name: str, step: int, n: int, temperature: float
    ) -> Collected:
        """`name`: the split, in the names of its trajectories."""

        def done(trajectory: Trajectory, _: AgentResult | None) -> None:
            self._session.progress.trajectory(trajectory.status, trajectory.sampled_tokens)
            self._session.status.heartbeat()

        collected = await self._while_trainer_lives(
            self._parts.collector.collect(instances, split=name, step=step, n=n, temperature=temperature, on_done=done)
        )
        await self._parts.store.flush()
        kill_point("traces_flushed")
        return collected

    async def _while_trainer_lives(self, work: Coroutine[Any, Any, Collected]) -> Collected:
        """Rollouts for a trainer that is gone would be for nothing. Raises what ended it."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
                failure = self._trainer.failure() if self._trainer is not None else None
                if failure is not None:
                    raise failure
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def one_step(self) -> None:
        step = self.step + 1
        self._step_began_s = time.monotonic()
        with self._session.progress.phase("step"):
            sampled_step = await self.sample(step)
            try:
                await self._think(step, sampled_step.times_s)
            finally:  # also where it was cut short: the rollouts are done
                await _uninterrupted(self._learn(step, sampled_step, ahead=False))

    async def sample(self, step: int) -> Sampled:
        """The rollouts of a step, with the weights that the engines hold."""
        started_s, sync_s, before = time.monotonic(), self._sync_s, self._sampler.state()
        try:
            collected = await sampled(
                self._sampler,
                lambda indices: self._generate(indices, step),
                self._config.algo,
                prompts=self._config.rollout.prompts_per_step,
                available=len(self._instances),
            )
            require_few_failures(collected.trajectories, self._config.rollout)
            require_some_in_time(collected.trajectories, self._config.rollout)
        except BaseException:
            self._sampler.restore(before)
            raise
        return Sampled(collected, self._sampler.state(), {"generate_s": time.monotonic() - started_s}, sync_s)

    async def learn(self, step: int, item: Sampled) -> None:
        """Trains on rollouts of older weights, while others are sampled."""
        await _uninterrupted(self._learn(step, item, ahead=True))
        self._step_began_s = time.monotonic()

    async def refresh(self) -> None:
        """The weights of the last step into the engines, unless they have them."""
        self._sync_s = await self._sync_weights() if self.served < self.step else 0.0

    async def _generate(self, indices: Sequence[int], step: int) -> Collected:
        """The groups of these training instances."""
        config, session = self._config, self._session
        instances = [self._instances[index] for index in indices]
        with session.progress.phase("generate", trajectories=len(instances) * config.rollout.n):
            async with watched(self._parts.engines, session.record, step=step):
                return await self._collect(
                    instances, config.env.split, step, config.rollout.n, config.rollout.temperature
                )

    async def _think(self, step: int, times_s: dict[str, float]) -> None:
        """`job.think_s`: the engines idle as long as training would take. Not after the last step."""
        think_s = self._config.job.think_s
        if self._trainer is not None or think_s <= 0.0 or step >= self._config.trainer.steps:
            return
        started_s = time.monotonic()
        try:
            with self._session.progress.phase("think"):
                await asyncio.sleep(think_s)
        finally:
            times_s["think_s"] = time.monotonic() - started_s

    async def _learn(self, step: int, item: Sampled, *, ahead: bool) -> None:
        collected, times_s = item.collected, item.times_s
        traces = self._count_tokens(collected)
        record: dict[str, Any] = {"step": step, **rollout_numbers(collected, times_s["generate_s"]), **times_s}
        await self._turns.to_trainer()
        kl_sums = await self._kl_sums(collected, traces)
        record["degenerate_groups"] = set_advantages(
            collected.trajectories, self._config.algo, kl_sums, self._config.rollout.max_trajectory_tokens
        )
        record["resampled_groups"] = len(groups_of(collected.trajectories)) - self._config.rollout.prompts_per_step
        rows = self._rows(collected, traces, record)
        if self._trainer is not None:
            with self._session.progress.phase("train"):
                metrics = await asyncio.to_thread(self._trainer.train_step, rows, step)
            record |= asdict(metrics)
            kill_point("trained")
        self.step, self._order = step, item.order
        if self._trainer is not None:
            record["weight_sync_s"] = item.sync_s if ahead else await self._sync_weights()
            record["checkpoint_s"] = self._checkpoint_s
        else:
            record["data_order"] = item.order  # a checkpoint has it otherwise
        record["weight_version"] = step if self._trainer is not None else 0
        record["step_s"] = time.monotonic() - self._step_began_s
        kill_point("weights_synced")
        self._session.steps.append_trajectories(step, _records(collected), ours=OUR_WORDS)
        kill_point("trajectories_written")
        self._write_profiles(collected, traces)
        kill_point("programs_written")
        self._session.steps.append(record)
        self._recorded_step = step
        kill_point("step_recorded")
        self._session.wandb.log(record, step)
        self._session.status.heartbeat(step)
        self.done_at_s[step] = time.monotonic()
        self._session.progress.step_done(record)
        # After the record: a checkpoint whose step nobody knows is not taken, and has pruned the one before it.
        self._checkpoint_s = await asyncio.to_thread(self._save_when_due)

    def _write_profiles(self, collected: Collected, traces: list[list[Trace]]) -> None:
        """One event a trajectory, replaced ones too, in seconds since the run's first event."""
        first = next(iter_jsonl(self._session.folder.events_jsonl), {})
        retried = [self._parts.store.traces(one.trajectory_id) for one in collected.retried]
        programs = [*collected.trajectories, *collected.retried]
        for fields in program_events(programs, [*traces, *retried], first.get("time", 0.0)):
            self._session.events.write("program", **fields)

    async def _kl_sums(self, collected: Collected, traces: list[list[Trace]]) -> dict[str, float]:
        """For `algo.kl_in=reward`: the KL to the reference, summed over each trajectory's tokens; else nothing."""
        algo = self._config.algo
        if self._trainer is None or algo.kl_coef == 0.0 or algo.kl_in is not KlPlace.reward:
            return {}
        rows = self._rows(collected, traces, {})
        return await asyncio.to_thread(self._trainer.sequence_kl, rows, algo.kl_estimator)

    def _count_tokens(self, collected: Collected) -> list[list[Trace]]:
        traces = [self._parts.store.traces(one.trajectory_id) for one in collected.trajectories]
        for trajectory, own in zip(collected.trajectories, traces, strict=True):
            count_tokens(trajectory, own)
        return traces

    def _rows(self, collected: Collected, traces: list[list[Trace]], record: dict[str, Any]) -> list[Row]:
        if self._config.rollout.capture is Capture.traced:
            pairs = zip(collected.trajectories, traces, strict=True)
            return [row for trajectory, own in pairs for row in traced_rows(trajectory, own)]
        mismatch, render = Mismatch(), conversation_renderer(self._parts.renderer)
        masks = self._config.rollout.filter_token_mismatch
        rows: list[Row] = []
        for trajectory, result, own in zip(collected.trajectories, collected.results, traces, strict=True):
            rows += retokenized_rows(trajectory, result, own, render, mismatch, masks=masks)
        record |= mismatch.rates()
        return rows

    async def _sync_weights(self) -> float:
        """New weights into every engine, stamped with the step that made them; returns seconds.

        Raises WeightSyncError, DiskError.
        """
        assert self._trainer is not None
        config, engines = self._config, self._parts.engines
        started_s = time.monotonic()
        with self._session.progress.phase("sync_weights"), self._parts.gateway.syncing():
            await self._turns.to_engines()
            times = await self._hand_over_weights(self._trainer)
        self.served = self.step
        sync_s = time.monotonic() - started_s
        event: dict[str, Any] = {"step": self.step, **times, **self._turns.times()}
        if config.trainer.check_weights:
            found = await require_agreement(
                engines, self._trainer, self.step, vocab_size=config.model.vocab_size, limit=explained(config)
            )
            event |= {"logprob_diff_mean": found.mean, "logprob_diff_max": found.largest, "check_s": found.check_s}
        self._session.events.write("weights", **event)
        return sync_s

    async def _hand_over_weights(self, trainer: TrainsPolicy) -> dict[str, float]:
        """Straight into the engines' memory, or as they take them one by one; what took how long, in seconds."""
        if self._transfer is not None:
            return asdict(await self._transfer.update(self.step))
        started_s = time.monotonic()
        weights = await asyncio.to_thread(trainer.weights)
        gathered_s = time.monotonic()
        await update_engines(self._parts.engines, weights, self.step)
        return {"gather_s": gathered_s - started_s, "load_s": time.monotonic() - gathered_s}

    def _save_when_due(self) -> float:
        config = self._config.trainer
        due = config.checkpoint_every_steps and self.step % config.checkpoint_every_steps == 0
        return self.save() if due or self.step == config.steps else 0.0

    def save(self) -> float:
        """A checkpoint of the last step, unless it has one, or is not recorded; returns seconds. Raises
        CheckpointWriteError.

        Many ranks write it behind the next steps; `wait` of the trainer returns when it is there.
        """
        if self._trainer is None or self.step == self._saved_step or self.step != self._recorded_step:
            return 0.0
        started_s = time.monotonic()
        self._trainer.save(
            self._session.folder.checkpoints,
            step=self.step,
            weight_version=self.step,
            data_order=self._order,
            config=flatten(self._config),
            hash_of_config=config_hash(self._config),
            keep=self._config.trainer.keep_checkpoints,
        )
        self._saved_step = self.step
        return time.monotonic() - started_s


def _records(collected: Collected) -> list[dict[str, Any]]:
    return [one.to_record() for one in (*collected.trajectories, *collected.retried)]


def _step_of(session_id: str) -> int:
    """Of a trajectory's id; -1 for a session of somebody else. An evaluation after step k counts as of step k."""
    parts = session_id.split(".")
    return int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else -1


def _is_evaluation(session_id: str, step: int) -> bool:
    return session_id.startswith(_EVALUATION) and _step_of(session_id) == step


async def _uninterrupted(work: Any) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.cancelled() or task.exception() is None:
            raise
    task.result()  # its own error, with its own cause
