"""What becomes of a step's rows: updates of the policy, new weights in the engines, checkpoints; or nothing.

Invariants:
- Where engines and trainer share GPUs, engines sleep from the end of the rollouts to the update (see engine/update).
- A checkpoint counts when `steps.jsonl` knows its step, and is whole. Where there are some and none counts, nothing is
  begun anew: that is for the user to say.
- Without a trainer there are no checkpoints, and each step's record has the order of the instances itself.
- After new weights every engine says how likely tokens are that it sampled, and the trainer gives them
  log-probabilities of its own: what lies between is the engine's loading of names, shapes and types. A difference that
  rounding does not explain stops the run. Wrong, torn or misplaced weights are seen; those of an earlier step where the
  step was larger than rounding: for that there is the version that every trace carries.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from swe_rl.algo.row import Row, alike
from swe_rl.config.choices import EngineKind, KlPlace
from swe_rl.config.compose import config_hash, flatten
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Completion, Engine, EngineError, EngineState, SamplingParams, WeightSyncError
from swe_rl.engine.update import make_transfer, make_turns, update_engines
from swe_rl.host.kill_point import kill_point
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.plan.sizes import uses_no_gpu
from swe_rl.rollout.sampler import SamplerState
from swe_rl.run.session import Session
from swe_rl.trainer.checkpoint.folder import by_step, size_problem, step_of
from swe_rl.trainer.protocol import TrainsPolicy

if TYPE_CHECKING:
    from swe_rl.run.components import Components  # built elsewhere: a step only uses them


_LOOK_S = 0.5  # between two looks at engines that wait for weights


class Learner:
    """A trainer and the way of its weights. The policy is evaluated as it learns."""

    evaluates = True

    def __init__(self, config: Config, session: Session, parts: "Components", trainer: TrainsPolicy) -> None:
        self._config, self._session, self._parts, self._trainer = config, session, parts, trainer
        self._transfer = make_transfer(config, parts.engines, trainer, self.reading)
        self._turns = make_turns(config, parts.engines)
        self.ahead = config.trainer.max_staleness_steps
        self.served = -1  # the step whose weights the engines hold
        self.saved_step = self._trained_step = 0  # of the newest checkpoint; of the trainer's weights; 0: there is none
        self._weights = asyncio.Condition()  # held while they change, or are read for a single engine
        self._are_kept = False

    def version(self, step: int) -> int:
        """Of the weights after `step`."""
        return step

    def failure(self) -> Exception | None:
        """What ended the trainer; None while it is well."""
        return self._trainer.failure()

    def go_back(self) -> tuple[int, SamplerState | None]:
        """To the newest checkpoint: its step, and the order of the instances. Raises CorruptCheckpointError."""
        self.saved_step, order = load_newest(
            self._trainer, self._session.folder, config_hash(self._config), self._config.trainer.keep_checkpoints
        )
        self._trained_step = self.saved_step
        return self.saved_step, order

    async def pause(self, step: int, times_s: dict[str, float]) -> None:
        """Learning takes the time that it takes."""

    async def begin(self, rows: Sequence[Row]) -> dict[str, float]:
        """The trainer's turn on shared GPUs. For `algo.kl_in=reward`: the KL to the reference in nats, summed over
        each trajectory's tokens; else nothing. Raises EngineError."""
        await self._turns.to_trainer()
        algo = self._config.algo
        if algo.kl_coef == 0.0 or algo.kl_in is not KlPlace.reward:
            return {}
        return await asyncio.to_thread(self._trainer.sequence_kl, rows, algo.kl_estimator)

    async def train(self, rows: Sequence[Row], step: int) -> dict[str, Any]:
        """The policy's update; its part of the step's record. Raises TrainerError."""
        with self._session.progress.phase("train"):
            async with self._weights:
                metrics = await asyncio.to_thread(self._trainer.train_step, rows, step)
                self._trained_step = step
        kill_point("trained")
        return asdict(metrics)

    async def refresh(self, step: int) -> float:
        """The weights of `step` into every engine, unless they have them; returns seconds.

        Raises WeightSyncError, DiskError.
        """
        if self.served >= step:
            return 0.0
        config, engines = self._config, self._parts.engines
        started_s = time.monotonic()
        with self._session.progress.phase("sync_weights"), self._parts.gateway.syncing():
            await self._turns.to_engines()
            times = await self._hand_over(step)
        self.served = step  # whatever the comparison says: where they disagree the run ends
        sync_s = time.monotonic() - started_s
        event: dict[str, Any] = {"step": step, **times, **self._turns.times()}
        if config.trainer.check_weights:
            agreed = await require_agreement(
                engines, self._trainer, step, vocab_size=config.model.vocab_size, limit=explained(config)
            )
            event |= {"logprob_diff_mean": agreed.mean, "logprob_diff_max": agreed.largest, "check_s": agreed.check_s}
        self._session.events.write("weights", **event)
        return sync_s

    async def keep(self, kept: bool) -> None:
        """Whether an evaluation needs the engines' weights as they are."""
        async with self._weights:
            self._are_kept = kept
            self._weights.notify_all()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[int]:
        """For a server that was started anew: nothing is learned inside the block; the version of the weights. Waits
        while the other engines' older ones are kept. Raises EngineError where no engine has those any more: who waits
        for them waits for this server."""
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
        """Straight into the engines' memory, or as they take them one by one; what took how long, in seconds."""
        if self._transfer is not None:
            return asdict(await self._transfer.update(step))
        started_s = time.monotonic()
        weights = await asyncio.to_thread(self._trainer.weights)
        gathered_s = time.monotonic()
        await update_engines(self._parts.engines, weights, step)
        return {"gather_s": gathered_s - started_s, "load_s": time.monotonic() - gathered_s}

    def facts(self, step: int, order: SamplerState, sync_s: float, checkpoint_s: float) -> dict[str, Any]:
        """Of the step's record. `checkpoint_s`: of the checkpoint after the step before."""
        return {"weight_sync_s": sync_s, "checkpoint_s": checkpoint_s, "weight_version": step}

    def save(self, step: int, order: SamplerState) -> float:
        """A checkpoint, unless `step` has one; returns seconds. Raises CheckpointWriteError.

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
            config=flatten(self._config),
            hash_of_config=config_hash(self._config),
            keep=self._config.trainer.keep_checkpoints,
        )
        self.saved_step = step
        return time.monotonic() - started_s

    def wait(self) -> None:
        """Until what is being written is there. Raises CheckpointWriteError."""
        self._trainer.wait()


class NoLearner:
    """Stands where a `Learner` would in `job=rollout`: the weights stay, and between two steps the engines idle for
    `job.think_s`, as long as training would take. Throughput is asked for, not the policy: it is never evaluated."""

    evaluates, ahead, served = False, 0, 0

    def __init__(self, config: Config, session: Session) -> None:
        self._config, self._session = config, session

    @property
    def saved_step(self) -> int:
        """The last one that is written."""
        return self.go_back()[0]

    def version(self, step: int) -> int:
        return 0

    def failure(self) -> None:
        """There is nothing to fail."""

    def go_back(self) -> tuple[int, SamplerState | None]:
        """To the last step that is written: its record has the order that a checkpoint has otherwise."""
        return _last_step(self._session.folder)

    async def pause(self, step: int, times_s: dict[str, float]) -> None:
        """Not after the last step; the time that it took is kept also where it is cut short."""
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
        """They never change."""

    def facts(self, step: int, order: SamplerState, sync_s: float, checkpoint_s: float) -> dict[str, Any]:
        return {"data_order": order, "weight_version": 0}

    def save(self, step: int, order: SamplerState) -> float:
        return 0.0

    def wait(self) -> None: ...


def load_newest(
    trainer: TrainsPolicy, folder: RunFolder, hash_of_config: str, keep: int
) -> tuple[int, SamplerState | None]:
    """The trainer goes back to the newest checkpoint that counts; step 0 and no order where there is none at all. The
    `keep` newest stay. Raises CorruptCheckpointError where that would pass over checkpoints.
    """
    from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError, prune, remove_leftovers

    recorded = {record.get("step") for record in read_jsonl(folder.steps_jsonl)}
    there = by_step(folder.checkpoints)
    newest = next((path for path in there if step_of(path) in recorded and size_problem(path) is None), None)
    remove_leftovers(folder.checkpoints)  # after its last step a run writes no other one that would
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
    restore_rng(saved.rng)
    with suppress(OSError):  # a folder that takes no change is for the next write to tell
        prune(folder.checkpoints, keep, newest)  # now: the disk may have no room for the next one
    return saved.step, saved.data_order


def _last_step(folder: RunFolder) -> tuple[int, SamplerState | None]:
    """Of a run without a trainer."""
    step, order = 0, None
    for record in read_jsonl(folder.steps_jsonl):
        if isinstance(written := record.get("data_order"), dict):  # older versions wrote none
            order = cast(SamplerState, {key: written[key] for key in SamplerState.__annotations__ if key in written})
            step = int(record["step"])
    return step, order


PROMPT_TOKENS, SAMPLED_TOKENS = 24, 12
# Mean absolute difference in nats that rounding explains: float32 in both, or bfloat16 with other kernels.
EXACT, ROUNDED = 2e-3, 0.25


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of the engine that differs most, in nats."""

    mean: float
    largest: float
    check_s: float


def explained(config: Config) -> float:
    """The mean difference up to which engines count as equal."""
    exact = uses_no_gpu(config.layout) and config.engine.kind is not EngineKind.external
    return EXACT if exact else ROUNDED


async def require_agreement(
    engines: Sequence[Engine], trainer: TrainsPolicy, version: int, *, vocab_size: int, limit: float
) -> Agreement:
    """Raises WeightSyncError that names the engines, and TrainerError."""
    started_s = time.monotonic()
    prompt = _prompt(vocab_size)
    replies = await asyncio.gather(*(_sampled(engine, prompt, version) for engine in engines))
    answers = {
        engine.name: reply
        for engine, reply in zip(engines, replies, strict=True)
        if engine.state is not EngineState.gone
    }
    completed = {name: reply for name, reply in answers.items() if isinstance(reply, Completion)}
    ours = await asyncio.to_thread(
        trainer.row_logprobs, [_row(name, prompt, reply) for name, reply in completed.items()]
    )
    apart = {name: _apart(row, completed[name].logprobs) for name, row in zip(completed, ours, strict=True)}
    wrong = {name: reply for name, reply in answers.items() if isinstance(reply, EngineError)} | {
        name: EngineError(f"{mean:.3g} nats apart on average, {largest:.3g} at most")
        for name, (mean, largest) in apart.items()
        if not mean <= limit  # also where it is not a number
    }
    if wrong:
        raise _error(wrong, len(engines), version, limit)
    mean, largest = max(apart.values(), default=(0.0, 0.0))
    return Agreement(mean, largest, time.monotonic() - started_s)


def _error(wrong: dict[str, EngineError], count: int, version: int, limit: float) -> WeightSyncError:
    causes = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return WeightSyncError(
        f"After the update to the weights of step {version}, {len(wrong)} of {count} engines do not give the tokens "
        f"that they sample the trainer's log-probabilities ({causes}; rounding explains {limit:g}): they hold other "
        "weights. The run stops, as it would train on samples of another policy. Look at the engines' logs "
        "(quantisation, another model?); trainer.check_weights=false leaves the comparison out.",
        wrong,
    )


def _prompt(vocab_size: int) -> tuple[int, ...]:
    rng = random.Random(0)
    return tuple(rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS))


async def _sampled(engine: Engine, prompt: tuple[int, ...], version: int) -> Completion | EngineError:
    """Asked a second time where it fails: an engine that died meanwhile comes back with the same weights."""
    session = f"weights-{version}.{engine.name}"
    params = SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0, seed=version)
    failure = EngineError("it gave no tokens")
    for _ in range(2):
        try:
            reply = await engine.generate(prompt, params, request_id=session, session_id=session)
        except EngineError as error:
            failure = error
            continue
        finally:
            engine.release_session(session)
        if reply.token_ids:
            return reply
    return failure


def _row(name: str, prompt: tuple[int, ...], reply: Completion) -> Row:
    ids = reply.token_ids
    mask = np.arange(len(prompt) + len(ids)) >= len(prompt)
    return Row(
        trajectory_id=name,
        group_id=name,
        token_ids=np.array(prompt + ids, np.int32),
        loss_mask=mask,
        rollout_logprobs=None,
        advantage=alike(0.0, mask),
        weight_versions=np.array(reply.weight_versions, np.int32),
        routes=reply.routes,
    )


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean and largest absolute difference; nothing sampled proves nothing."""
    gaps = [abs(mine - other) for mine, other in zip(ours, theirs, strict=True)]
    if not gaps or not all(math.isfinite(gap) for gap in gaps):
        return math.nan, math.nan
    return sum(gaps) / len(gaps), max(gaps)
