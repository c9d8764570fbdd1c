"""Does what engines and agents do in a run: trajectories of steps and evaluations, and what is kept of them.

Invariants:
- All traces of what was collected are committed before anybody makes something of them.
- What grows with tokens happens in other threads than the event loop's, one trajectory after another.
- `job=eval` measures the held-out split as training does: `measure` is the only way.
- Rollouts for a trainer that is gone would be for nothing: they end with what ended it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swe_rl.agent.protocol import AgentResult
from swe_rl.algo.row import Row
from swe_rl.config.choices import Capture, InstanceChoice, KeepTraces
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.engine.watch import watch_engines
from swe_rl.errors import UserError
from swe_rl.files.kill_point import kill_point
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.resolved import describe_split, line_of
from swe_rl.rollout.batch import count_tokens, eval_numbers
from swe_rl.rollout.collect import (
    NONE_KNOWN,
    Collected,
    Known,
    OnDone,
    require_few_failures,
    require_some_in_time,
    require_some_understood,
)
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.profile import program_event
from swe_rl.rollout.rows import Mismatch, retokenized_rows, traced_rows
from swe_rl.rollout.sampler import PromptSampler, observe_step, sample_step
from swe_rl.rollout.sampler_state import SamplerState
from swe_rl.rollout.trajectory import EVALUATION, OUR_WORDS, Trajectory, TrajectoryId
from swe_rl.run.same_instances import carried_over, compared_held_out, keep_ids
from swe_rl.run.session import RunSession
from swe_rl.trainer.ranks.rows_file import keep_rows, remove_left

if TYPE_CHECKING:
    from swe_rl.run.components import Components  # built elsewhere: a step only uses them

_LOOK_S = 1.0  # So much time is between two looks at the trainer.


@dataclass(slots=True)
class SampledStep:
    """A step's rollouts, before anything is learned from them."""

    collected: Collected
    order: SamplerState  # It is the order of the instances, after this step took its own.
    times_s: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)  # These are more of the step's record.


class Rollouts:
    """The rollouts of a run. `failure` tells what ended the trainer that all of it is for; None while it is well."""

    def __init__(
        self,
        config: Config,
        session: RunSession,
        parts: "Components",
        failure: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._config = config
        self.session = session
        self.parts = parts
        self._failure = failure
        self._sessions: dict[int, list[str]] = {}  # Traces of these are there for a step that is recorded.

    @cached_property
    def instances(self) -> Sequence[Instance]:
        """The instances of training, read when a step first asks for them. Raises UserError."""
        split = self._config.env.split
        wanted = self._config.rollout.prompts_per_step
        instances = self.parts.env.instances(split)
        if len(instances) < wanted:
            raise UserError(
                f"rollout.prompts_per_step={wanted}, but env.split={split} has only {len(instances)} instances; lower "
                "it, or choose more with env.dataset or env.instances"
            )
        return instances

    @cached_property
    def held_out(self) -> Sequence[Instance]:
        """The held-out split, or the part of it that a predictions file has patches for.

        Raises UserError where such a file has a patch for none of it.
        """
        env = self._config.env
        instances = self.parts.env.instances(env.eval_split)
        if self.parts.predictions is None:
            return instances
        patches = self.parts.predictions.patches
        predicted = [instance for instance in instances if instance.instance_id in patches]
        if not predicted:
            raise UserError(
                f"agent.predictions={self._config.agent.predictions} has no patch for any of the {len(instances)} "
                f"instances of env.eval_split={env.eval_split}: it has {_two_ids(list(patches))}, the split has "
                f"{_two_ids([instance.instance_id for instance in instances])}. Choose the data set that the patches "
                "were made for, with env, env.dataset and env.eval_split."
            )
        known = {instance.instance_id for instance in instances}
        unknown = [name for name in patches if name not in known]
        if unknown:
            self.session.warn(
                f"agent.predictions: {len(unknown)} of {len(patches)} patches are for no instance of "
                f"env.eval_split={env.eval_split} and are not graded: {_two_ids(unknown)}"
            )
        return predicted

    @cached_property
    def sampler(self) -> PromptSampler:
        """The order of the training instances. Raises UserError where there are too few for a step."""
        rollout = self._config.rollout
        size = len(self.instances)
        rates = None
        if rollout.instances is InstanceChoice.informative:
            rates = PassRates(size, rollout.pass_rate_half_life_steps * rollout.prompts_per_step)
        ids = [instance.instance_id for instance in self.instances]
        keep_ids(self.session.folder, ids)
        return PromptSampler(size, self._config.trainer.seed, rates, ids=ids)

    def carry_over(self, order: SamplerState) -> SamplerState:
        """Returns the saved `order` for the instances of now, which an earlier start may not have had: says what
        changed.

        Raises OtherInstancesError where `order` cannot be continued, DiskError.
        """
        order = carried_over(self.sampler, order, self.session)
        by_id = {instance.instance_id: instance for instance in self.instances}
        self.instances = [by_id[name] for name in self.sampler.ids]
        return order

    def carry_over_held_out(self) -> None:
        """Says what changed in the held-out instances since an earlier start, and keeps their order."""
        names = compared_held_out([instance.instance_id for instance in self.held_out], self.session)
        by_id = {instance.instance_id: instance for instance in self.held_out}
        self.held_out = [by_id[name] for name in names]

    async def sample(self, step: int) -> SampledStep:
        """Returns a step's rollouts. Where they fail, the order of the instances is as before."""
        started_s = time.monotonic()
        before = self.sampler.state()
        try:
            collected = await sample_step(
                self.sampler,
                lambda indices: self._generate(indices, step),
                self._config.algo,
                prompts=self._config.rollout.prompts_per_step,
                available=len(self.instances),
            )
            require_few_failures(collected.trajectories, self._config.rollout)
            require_some_in_time(collected.trajectories, self._config.rollout)
            require_some_understood(collected.trajectories)
            indices = {instance.instance_id: index for index, instance in enumerate(self.instances)}
            facts = observe_step(self.sampler, collected.trajectories, indices)
        except BaseException:
            self.sampler.restore(before)
            raise
        return SampledStep(collected, self.sampler.state(), {"generate_s": time.monotonic() - started_s}, facts)

    async def _generate(self, indices: Sequence[int], step: int) -> Collected:
        config = self._config
        session = self.session
        instances = [self.instances[index] for index in indices]
        with session.progress.phase("generate", trajectories=len(instances) * config.rollout.n):

            def record(event: str, fields: Mapping[str, object]) -> None:
                session.steps.append_programs(step, event, [fields])

            async with watch_engines(self.parts.engines, record, step=step):
                return await self._collect(
                    instances, config.env.split, step, config.rollout.n, config.rollout.temperature
                )

    async def measure(
        self,
        step: int,
        *,
        known: Known = NONE_KNOWN,
        on_done: OnDone | None = None,
        places: asyncio.Semaphore | None = None,
    ) -> tuple[Collected, dict[str, Any]]:
        """Measures the held-out split under the weights of `step`. Returns it and its numbers.

        `known`, `on_done` and `places` are as in Collector. Whether too much of it failed is asked afterwards: its
        verdicts are there all the same.
        """
        session = self.session
        rollout = self._config.rollout
        split = self._config.env.eval_split
        started_s = time.monotonic()
        shown = 0 if places else len(self.held_out) * rollout.eval_n
        with session.progress.phase("eval", trajectories=shown):
            for trajectory in known.values():
                session.progress.trajectory(trajectory.status, trajectory.sampled_tokens)
            name = f"{EVALUATION}{split}"
            n = rollout.eval_n
            temperature = rollout.eval_temperature
            collected = await self._collect(self.held_out, name, step, n, temperature, known, on_done, places)
        whole = self.parts.env.split_instances(split)
        took_s = time.monotonic() - started_s
        return collected, eval_numbers(collected, step=step, split=split, eval_s=took_s, split_instances=whole)

    async def evaluate(self, step: int, places: asyncio.Semaphore | None = None) -> None:
        """Makes the held-out measure and its records; `places` are shared. Raises RolloutError."""
        collected, numbers = await self.measure(step, places=places)
        require_few_failures(collected.trajectories, self._config.rollout)
        await asyncio.to_thread(self._count, collected)
        self.session.steps.append_trajectories(step, _all_records(collected), evaluation=True, ours=OUR_WORDS)
        kill_point("eval_trajectories_written")
        self.session.evaluated(numbers)
        kill_point("eval_recorded")
        self.session.progress.eval_done(f"{describe_split(numbers)}, after step {step}", *line_of(numbers))
        self._remember(step, collected)

    async def _collect(
        self,
        instances: Sequence[Instance],
        name: str,
        step: int,
        n: int,
        temperature: float,
        known: Known = NONE_KNOWN,
        on_done: OnDone | None = None,
        places: asyncio.Semaphore | None = None,
    ) -> Collected:
        """Collects. `name` is the split, in the names of its trajectories. `places` are others', who are shown."""

        def done(trajectory: Trajectory, result: AgentResult | None) -> Awaitable[None] | None:
            self.ended(trajectory, counted=places is None)
            return None if on_done is None else on_done(trajectory, result)

        collected = await self._while_trainer_lives(
            self.parts.collector.collect(
                instances,
                split=name,
                step=step,
                n=n,
                temperature=temperature,
                on_done=done,
                known=known,
                places=places,
            )
        )
        await self.parts.store.flush()
        kill_point("traces_flushed")
        return collected

    def ended(self, trajectory: Trajectory, *, counted: bool = True) -> None:
        """Shows a trajectory, `counted` if it is waited for, as a sign of life. Raises DiskError."""
        progress = self.session.progress
        if counted:
            progress.trajectory(trajectory.status, trajectory.sampled_tokens)
        progress.detail(trajectory.to_record)
        self.session.status.heartbeat()

    async def _while_trainer_lives(self, work: Coroutine[Any, Any, Collected]) -> Collected:
        """Returns what `work` returns. Raises what ended the trainer."""
        task = asyncio.ensure_future(work)
        looking = asyncio.ensure_future(self.trainer_lives())
        try:
            await asyncio.wait({task, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                looking.result()
            return task.result()
        finally:
            for unfinished in (task, looking):
                unfinished.cancel()
            await asyncio.wait({task, looking})

    async def trainer_lives(self) -> None:
        """Never returns. Raises what ended the trainer, which is looked at: ranks elsewhere wake nobody here."""
        while True:
            await asyncio.sleep(_LOOK_S)
            failure = self._failure()
            if failure is not None:
                raise failure

    def _count(self, collected: Collected) -> None:
        for trajectory in collected.trajectories:
            count_tokens(trajectory, self.parts.store.traces(trajectory.trajectory_id))

    def rows(self, collected: Collected) -> tuple[list[Row], dict[str, float]]:
        """Returns rows without advantages yet; and how far rendering again is off, where that is what is trained on.

        Each trajectory's prompt and response lengths are filled in. It is for a thread of its own. The traces of one
        trajectory are in memory at a time. Raises RowError, TraceStoreError.
        """
        traced = self._config.rollout.capture is Capture.traced
        masks = self._config.rollout.filter_token_mismatch
        mismatch = Mismatch()
        renderer = self.parts.renderer
        rows = list[Row]()
        for trajectory, result in zip(collected.trajectories, collected.results, strict=True):
            traces = self.parts.store.traces(trajectory.trajectory_id)
            count_tokens(trajectory, traces)
            if traced:
                rows += traced_rows(trajectory, traces)
            else:
                rows += retokenized_rows(trajectory, result, traces, renderer, mismatch, masks=masks)
        return rows, {} if traced else mismatch.rates()

    def record(self, step: int, collected: Collected) -> None:
        """Records a step's trajectories, and an event for each with its phases, replaced attempts too.

        It is for a thread of its own, as `rows`. Raises DiskError, TraceStoreError.
        """
        self.session.steps.append_trajectories(step, _all_records(collected), ours=OUR_WORDS)
        kill_point("trajectories_written")
        first = next(iter_jsonl(self.session.folder.events_jsonl), {})  # Seconds are since the run's first event.
        events = (
            program_event(trajectory, self.parts.store.traces(trajectory.trajectory_id), first.get("time", 0.0))
            for trajectory in (*collected.trajectories, *collected.retried)
        )
        self.session.steps.append_programs(step, "program", events)
        kill_point("programs_written")
        self._remember(step, collected)

    def keep_rows(self, step: int, rows: Sequence[Row]) -> None:
        """Keeps rows where traces are not kept. Raises DiskError."""
        if self._config.gateway.keep_traces is KeepTraces.rows:
            keep_rows(rows, self.session.folder.rows(step))

    def forget_after(
        self, step: int, *, evaluation: bool, trained: Collection[str] | None = None, queued: Collection[str] = ()
    ) -> None:
        """Forgets traces of later steps, and with `evaluation` all of the one after `step`, as half of one is none.

        Where groups flow, those of training stay whose groups were `trained` or are `queued`, whatever step their names
        say.
        """
        if evaluation:
            self.session.folder.eval_trajectories(step).unlink(missing_ok=True)
        remove_left(self.session.folder.rows_folder)
        splits = self._config.env.split, f"{EVALUATION}{self._config.env.eval_split}"
        ids = [parsed for name in self.parts.store.sessions() if (parsed := TrajectoryId.parse(name, splits))]
        half = step if evaluation else step + 1  # From here on evaluations go, too.
        late = {id for id in ids if (id.step >= half if id.is_evaluation else id.step > step)}
        if trained is not None:
            stays = {*trained, *queued}
            late = {id for id in ids if (id.step >= half if id.is_evaluation else id.group_id not in stays)}
        self.parts.store.delete([str(id) for id in late])
        self._sessions = {step: [str(id) for id in ids if id not in late and id.group_id not in queued]}

    def forget_through(self, step: int) -> None:
        """Forgets traces of what was trained or evaluated up to `step`, unless they are kept."""
        if self._config.gateway.keep_traces is KeepTraces.all:
            return
        covered = [past for past in self._sessions if past <= step]
        self.parts.store.delete([name for past in covered for name in self._sessions.pop(past)])

    def _remember(self, step: int, collected: Collected) -> None:
        names = [trajectory.trajectory_id for trajectory in (*collected.trajectories, *collected.retried)]
        self._sessions.setdefault(step, []).extend(names)


def _two_ids(names: Sequence[str]) -> str:
    """Returns the first two ids as text, and says how many more there are."""
    shown = " and ".join(names[:2]) or "none"
    return shown if len(names) <= 2 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _all_records(collected: Collected) -> list[dict[str, Any]]:
    return [trajectory.to_record() for trajectory in (*collected.trajectories, *collected.retried)]
