"""Makes of a step's rows updates of the policy, new weights in the engines and checkpoints; or nothing.

Invariants:
- Where engines and trainer share GPUs, engines sleep from the end of the rollouts to the update (see engine/update).
- A checkpoint counts when `steps.jsonl` knows its step, and is whole. Where there are some and none counts, nothing is
  begun anew: that is for the user to say.
- Without a trainer there are no checkpoints, and each step's record has the order of the instances itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from swe_rl.algo.row import Row
from swe_rl.config.choices import KlPlace
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.schema import Config
from swe_rl.engine.engine import EngineError, EngineState
from swe_rl.engine.update import make_transfer, make_turns, update_engines
from swe_rl.files.kill_point import kill_point
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.rollout.order.sampler_state import SamplerState
from swe_rl.run.agreement import explained_difference, require_agreement
from swe_rl.run.session import RunSession
from swe_rl.trainer.checkpoint.folder import by_step, size_problem, step_of
from swe_rl.trainer.trainer import TrainsPolicy

if TYPE_CHECKING:
    from swe_rl.run.components import Components  # built elsewhere: a step only uses them


_LOOK_S = 0.5  # So much time is between two looks at engines that wait for weights.


class Learner:
    """A trainer and the way of its weights. The policy is evaluated as it learns."""

    evaluates = True

    def __init__(self, config: Config, session: RunSession, parts: "Components", trainer: TrainsPolicy) -> None:
        self._config = config
        self._session = session
        self._parts = parts
        self._trainer = trainer
        self._transfer = make_transfer(config, parts.engines, trainer, self.reading)
        self._turns = make_turns(config, parts.engines)
        self.ahead = config.trainer.max_staleness_steps
        self.served = -1  # The engines hold the weights of this step.
        # These are the steps of the newest checkpoint and of the trainer's weights; 0: there is none.
        self.saved_step = self._trained_step = 0
        self._weights = asyncio.Condition()  # It is held while they change, or are read for a single engine.
        self._are_kept = False

    def version(self, step: int) -> int:
        """Returns the version of the weights after `step`."""
        return step

    def failure(self) -> Exception | None:
        """Returns what ended the trainer; None while it is well."""
        return self._trainer.failure()

    def go_back(self) -> tuple[int, SamplerState | None]:
        """Goes to the newest checkpoint. Returns its step and the order of the instances. Raises
        CorruptCheckpointError.
        """
        self.saved_step, order = load_newest(
            self._trainer, self._session, config_hash(self._config), self._config.trainer.keep_checkpoints
        )
        self._trained_step = self.saved_step
        return self.saved_step, order

    async def pause(self, step: int, times_s: dict[str, float]) -> None:
        """Does nothing: learning takes the time that it takes."""

    async def begin(self, rows: Sequence[Row]) -> dict[str, float]:
        """Begins the trainer's turn on shared GPUs. Raises EngineError.

        Returns for `algo.kl_in=reward` the KL to the reference in nats, summed over each trajectory's tokens; else
        nothing.
        """
        await self._turns.to_trainer()
        algo = self._config.algo
        if algo.kl_coef == 0.0 or algo.kl_in is not KlPlace.reward:
            return {}
        return await asyncio.to_thread(self._trainer.sequence_kl, rows, algo.kl_estimator)

    async def train(self, rows: Sequence[Row], step: int) -> dict[str, Any]:
        """Updates the policy. Returns its part of the step's record. Raises TrainerError."""
        with self._session.progress.phase("train"):
            async with self._weights:
                metrics = await asyncio.to_thread(self._trainer.train_step, rows, step)
                self._trained_step = step
        kill_point("trained")
        return asdict(metrics)

    async def refresh(self, step: int) -> float:
        """Gives every engine the weights of `step`, unless they have them. Returns seconds.

        Raises WeightSyncError, DiskError.
        """
        if self.served >= step:
            return 0.0
        config = self._config
        engines = self._parts.engines
        started_s = time.monotonic()
        with self._session.progress.phase("sync_weights"), self._parts.gateway.syncing():
            await self._turns.to_engines()
            times = await self._hand_over(step)
        self.served = step  # This holds whatever the comparison says: where they disagree the run ends.
        sync_s = time.monotonic() - started_s
        event: dict[str, Any] = {"step": step, "sync_s": sync_s, **times, **self._turns.times()}
        if config.trainer.check_weights:
            agreed = await require_agreement(
                engines, self._trainer, step, vocab_size=config.model.vocab_size, limit=explained_difference(config)
            )
            event |= {"logprob_diff_mean": agreed.mean, "logprob_diff_max": agreed.largest, "check_s": agreed.check_s}
        self._session.events.write("weights", **event)
        return sync_s

    async def keep(self, kept: bool) -> None:
        """Notes whether an evaluation needs the engines' weights as they are."""
        async with self._weights:
            self._are_kept = kept
            self._weights.notify_all()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[int]:
        """Yields the version of the weights for a server that was started anew: nothing is learned inside the block.

        It waits while the other engines' older ones are kept. Raises EngineError where no engine has those any more:
        who waits for them waits for this server.
        """
        async with self._weights:
            while self._are_kept and self._trained_step != self.served:
                if all(engine.state is not EngineState.up for engine in self._parts.engines):
                    raise EngineError(
                        f"the weights of step {self.served}, which are being evaluated, went with the last server that "
                        f"had them, and the trainer has those of step {self._trained_step}. The same command with "
                        "trainer.resume=auto goes on from the checkpoint of the evaluation"
                    )
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._weights.wait()
            yield self._trained_step

    async def _hand_over(self, step: int) -> Mapping[str, float]:
        """Brings weights straight into the engines' memory, or as they take them one by one. Returns
        seconds by name.
        """
        if self._transfer is not None:
            return asdict(await self._transfer.update(step))
        started_s = time.monotonic()
        weights = await asyncio.to_thread(self._trainer.weights)
        gathered_s = time.monotonic()
        await update_engines(self._parts.engines, weights, step)
        return {"gather_s": gathered_s - started_s, "load_s": time.monotonic() - gathered_s}

    def facts(self, step: int, order: SamplerState, sync_s: float, checkpoint_s: float) -> dict[str, Any]:
        """Returns facts of the step's record. `checkpoint_s` is of the checkpoint after the step before."""
        return {"weight_sync_s": sync_s, "checkpoint_s": checkpoint_s, "weight_version": step}

    def save(self, step: int, order: SamplerState) -> float:
        """Begins a checkpoint, unless `step` has one. Returns seconds. Raises CheckpointWriteError.

        Many ranks write it behind the next steps; it is there when `wait` returns.
        """
        if step == self.saved_step:
            return 0.0
        started_s = time.monotonic()
        self._trainer.save(
            self._session.folder.checkpoints,
            step=step,
            weight_version=step,
            data_order=order,
            config=flatten_config(self._config),
            hash_of_config=config_hash(self._config),
            keep=self._config.trainer.keep_checkpoints,
        )
        self.saved_step = step
        return time.monotonic() - started_s

    def wait(self) -> None:
        """Returns once what is being written is there. Raises CheckpointWriteError."""
        self._trainer.wait()


class NoLearner:
    """Stands where a `Learner` would in `job=rollout`: the weights stay.

    Between two steps the engines idle for `job.think_s`, as long as training would take. Throughput is asked for, not
    the policy: it is never evaluated.
    """

    evaluates = False
    ahead = 0
    served = 0

    def __init__(self, config: Config, session: RunSession) -> None:
        self._config = config
        self._session = session

    @property
    def saved_step(self) -> int:
        """The last step that is written."""
        return self.go_back()[0]

    def version(self, step: int) -> int:
        return 0

    def failure(self) -> None:
        """Returns None: there is nothing to fail."""

    def go_back(self) -> tuple[int, SamplerState | None]:
        """Goes to the last step that is written: its record has the order that a checkpoint has otherwise."""
        return _last_step(self._session.folder)

    async def pause(self, step: int, times_s: dict[str, float]) -> None:
        """Idles, but not after the last step; the time that it took is kept also where it is cut short."""
        think_s = self._config.job.think_s
        if think_s <= 0.0 or step >= self._config.trainer.steps:
            return
        started_s = time.monotonic()
        try:
            with self._session.progress.phase("think"):
                await asyncio.sleep(think_s)
        finally:
            times_s["think_s"] = time.monotonic() - started_s

    async def begin(self, rows: Sequence[Row]) -> dict[str, float]:
        return {}

    async def train(self, rows: Sequence[Row], step: int) -> dict[str, Any]:
        return {}

    async def refresh(self, step: int) -> float:
        return 0.0

    async def keep(self, kept: bool) -> None:
        """Does nothing: the weights never change."""

    def facts(self, step: int, order: SamplerState, sync_s: float, checkpoint_s: float) -> dict[str, Any]:
        return {"data_order": order, "weight_version": 0}

    def save(self, step: int, order: SamplerState) -> float:
        return 0.0

    def wait(self) -> None: ...


def load_newest(
    trainer: TrainsPolicy, session: RunSession, hash_of_config: str, keep: int
) -> tuple[int, SamplerState | None]:
    """Takes the trainer to the newest checkpoint that counts. Returns step 0 and no order where there is none at all.

    The `keep` newest stay. Each checkpoint that is passed over is named. Raises CorruptCheckpointError where none
    counts.
    """
    from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError, prune_checkpoints, remove_leftovers

    folder = session.folder
    recorded = {record.get("step") for record in read_jsonl(folder.steps_jsonl)}
    there = by_step(folder.checkpoints)
    newest = next((path for path in there if step_of(path) in recorded and size_problem(path) is None), None)
    remove_leftovers(folder.checkpoints)  # After its last step a run writes no other checkpoint that would remove them.
    if newest is None and there:
        reason = size_problem(there[0]) or f"{folder.steps_jsonl} has no record of its step"
        raise CorruptCheckpointError(
            f"{there[0]} cannot be continued from ({reason}), and no other checkpoint of {folder.path} can. "
            "Put back what is missing, or begin a new run with trainer.resume=none."
        )
    if newest is None:
        return 0, None
    from swe_rl.trainer.checkpoint.folder import restore_rng

    saved = trainer.load(newest, hash_of_config)
    _tell_skipped(session, newest)
    restore_rng(saved.rng)
    with suppress(OSError):  # If a folder takes no change, the next write tells of it.
        prune_checkpoints(
            folder.checkpoints, keep, newest
        )  # They are pruned now: the disk may have no room for the next one.
    return saved.step, saved.data_order


def _tell_skipped(session: RunSession, newest: Path) -> None:
    """Names the checkpoints of higher steps, in the terminal and among the run's events. Raises DiskError."""
    from swe_rl.trainer.checkpoint.folder import skipped_for

    for path, problem in skipped_for(newest).items():
        reason = problem or f"{session.folder.steps_jsonl.name} has no record of its step"
        session.warn(f"warning: checkpoint {path.name} is skipped ({reason}); the run continues from {newest.name}")
        session.record("checkpoint_skipped", {"checkpoint": path.name, "reason": reason, "continued_from": newest.name})


def _last_step(folder: RunFolder) -> tuple[int, SamplerState | None]:
    """Returns the last step and its order, of a run without a trainer."""
    step = 0
    order = None
    for record in read_jsonl(folder.steps_jsonl):
        if isinstance(written := record.get("data_order"), dict):  # Older versions wrote none.
            order = cast(SamplerState, {key: written[key] for key in SamplerState.__annotations__ if key in written})
            step = int(record["step"])
    return step, order
