"""Does what engines and agents do in a run: trajectories of steps and evaluations, and what is kept of them.

Invariants:
- All traces of what was collected are committed before anybody makes something of them.
- What grows with tokens happens in other threads than the event loop's, one trajectory after another.
- `job=eval` measures the held-out split as training does: `measure` is the only way.
- Rollouts for a trainer that is gone would be for nothing: they end with what ended it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swe_rl.agent.agent import AgentResult
from swe_rl.algo.row import Row
from swe_rl.config.choices import Capture, KeepTraces
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.dataset.predictions import find_predicted
from swe_rl.engine.watch import watch_engines
from swe_rl.env.mix import part_of
from swe_rl.errors import UserError
from swe_rl.facts.schedule import rollout_at, scheduled_numbers
from swe_rl.files.kill_point import kill_point
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.resolved import describe_split, line_of, part_lines
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
from swe_rl.rollout.order.mixed_sampler import make_sampler, require_shares
from swe_rl.rollout.order.sampler import InstanceSampler, observe_step, sample_step
from swe_rl.rollout.order.sampler_state import SamplerState
from swe_rl.rollout.profile import program_event
from swe_rl.rollout.rows import Mismatch, retokenized_rows, traced_rows
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
        require_shares(self._config, Counter(self._part_name(instance) for instance in instances))
        return instances

    def _part_name(self, instance: Instance) -> str:
        return part_of(self.parts.env, self._config.env, instance).name

    @cached_property
    def held_out(self) -> Sequence[Instance]:
        """The held-out split, or the part of it that a predictions file has patches for.

        Raises UserError where such a file has a patch for none of it.
        """
        instances = self.parts.env.instances(self._config.env.eval_split)
        if self.parts.predictions is None:
            return instances
        predicted, unknown = find_predicted(self._config, self.parts.predictions, instances)
        if unknown:
            self.session.warn(unknown)
        return predicted

    @cached_property
    def sampler(self) -> InstanceSampler:
        """The order of the training instances. Raises UserError where there are too few for a step."""
        ids_by_part: dict[str, list[str]] = {}
        for instance in self.instances:
            ids_by_part.setdefault(self._part_name(instance), []).append(instance.instance_id)
        keep_ids(self.session.folder, [instance.instance_id for instance in self.instances])
        return make_sampler(self._config, ids_by_part)

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
        self._take_earlier_tokens()
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
        times_s = {"generate_s": time.monotonic() - started_s}
        facts |= scheduled_numbers(self._config.rollout, step)
        # This start spent no time on them, so a rate would be wrong.
        if self._take_earlier_tokens():
            facts |= {"tokens_per_s": None, "sampled_tokens_per_s": None}
        return SampledStep(collected, self.sampler.state(), times_s, {**facts, **self.steered()})

    def _take_earlier_tokens(self) -> int:
        return self.parts.continued.take_earlier_tokens() if self.parts.continued is not None else 0

    def steered(self) -> dict[str, Any]:
        """Returns what a step's record has of the number of trajectories under way, if that changes."""
        steering = self.parts.steering
        if steering is None:
            return {}
        return steering.facts()

    async def _generate(self, indices: Sequence[int], step: int) -> Collected:
        config = self._config
        session = self.session
        instances = [self.instances[index] for index in indices]
        with session.progress.phase("generate", trajectories=len(instances) * config.rollout.n):

            def record(event: str, fields: Mapping[str, object]) -> None:
                session.steps.append_programs(step, event, [fields])

            async with watch_engines(self.parts.engines, record, step=step):
                temperature = rollout_at(config.rollout, step).temperature
                return await self._collect(instances, config.env.split, step, config.rollout.n, temperature)

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
        shown = 0
        if not places:
            shown = len(self.held_out) * rollout.eval_n
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
        when = "before step 1"
        if step:
            when = f"after step {step}"
        self.session.progress.eval_done(f"{describe_split(numbers)}, {when}", *line_of(numbers))
        for line in part_lines(self.session.evals()):
            self.session.progress.message(f"  {line}")
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
            if on_done is None:
                return None
            return on_done(trajectory, result)

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
            traces = self.parts.store.traces(trajectory.trajectory_id)
            count_tokens(trajectory, traces, sub_agents_trained=self._config.agent.delegate.trained)

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
            count_tokens(trajectory, traces, sub_agents_trained=self._config.agent.delegate.trained)
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
        if trained is None:
            self.keep_under_way(id for id in late if id.step == (step if id.is_evaluation else step + 1))
        self.parts.store.delete([str(id) for id in late])
        self._sessions = {step: [str(id) for id in ids if id not in late and id.group_id not in queued]}

    def keep_under_way(self, ids: Iterable[TrajectoryId]) -> None:
        """Keeps what was sampled of the next attempts, under the weights of now. Raises TraceStoreError, DiskError."""
        if self.parts.continued is not None and (kept := self.parts.continued.keep(ids)).attempts:
            self.session.events.write("attempts_kept", attempts=kept.attempts, sampled_tokens=kept.sampled_tokens)

    def forget_through(self, step: int) -> None:
        """Forgets traces of what was trained or evaluated up to `step`, unless they are kept, and its commands."""
        covered = [past for past in self._sessions if past <= step]
        names = [name for past in covered for name in self._sessions.pop(past)]
        if self.parts.continued is not None:
            self.parts.continued.forget(names, at_the_end=step >= self._config.trainer.steps)
        if self._config.gateway.keep_traces is not KeepTraces.all:
            self.parts.store.delete(names)

    def _remember(self, step: int, collected: Collected) -> None:
        names = [trajectory.trajectory_id for trajectory in (*collected.trajectories, *collected.retried)]
        self._sessions.setdefault(step, []).extend(names)


def _all_records(collected: Collected) -> list[dict[str, Any]]:
    return [trajectory.to_record() for trajectory in (*collected.trajectories, *collected.retried)]
