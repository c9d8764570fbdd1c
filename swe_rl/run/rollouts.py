"""What engines and agents do in a run: the trajectories of a step and of an evaluation, and what is kept of them.

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
from swe_rl.engine.watch import watched
from swe_rl.env.instance import Instance
from swe_rl.errors import UserError
from swe_rl.host.kill_point import kill_point
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.resolved import headline, line_of
from swe_rl.rollout.batch import count_tokens, eval_numbers
from swe_rl.rollout.collect import (
    NO_PREFIXES,
    NONE_KNOWN,
    Collected,
    Known,
    OnDone,
    require_few_failures,
    require_some_in_time,
)
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.prefix_files import PrefixFiles
from swe_rl.rollout.prefixes import Prefixes, PrefixesState, sources_of
from swe_rl.rollout.profile import program_event
from swe_rl.rollout.rows import Mismatch, retokenized_rows, traced_rows
from swe_rl.rollout.sampler import PromptSampler, SamplerState, observed, sampled
from swe_rl.rollout.trajectory import EVALUATION, OUR_WORDS, Prefix, Trajectory, TrajectoryId
from swe_rl.run.session import Session
from swe_rl.trainer.ranks.rows_file import keep, remove_left

if TYPE_CHECKING:
    from swe_rl.run.components import Components  # built elsewhere: a step only uses them

_LOOK_S = 1.0  # between two looks at the trainer


@dataclass(slots=True)
class Sampled:
    """A step's rollouts, before anything is learned from them."""

    collected: Collected
    order: SamplerState  # of the instances, after this step took its conversation
    times_s: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)  # more of the step's record


class Rollouts:
    """`failure`: what ended the trainer that all of it is for; None while it is well."""

    def __init__(
        self,
        config: Config,
        session: Session,
        parts: "Components",
        failure: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._config, self.session, self.parts, self._failure = config, session, parts, failure
        self._prefix_files = PrefixFiles(session.folder.prefixes)
        self._named: set[str] | None = None  # sources in the newest checkpoint of this start
        self._sessions: dict[int, list[str]] = {}  # whose traces are there for a step that is recorded

    @cached_property
    def instances(self) -> Sequence[Instance]:
        """Of training: read when a step first asks for them, as an evaluation may do without. Raises UserError."""
        split, wanted = self._config.env.split, self._config.rollout.prompts_per_step
        instances = self.parts.env.instances(split)
        if len(instances) < wanted:
            raise UserError(
                f"rollout.prompts_per_step={wanted}, but env.split={split} has only {len(instances)} instances; lower "
                "it, or choose more with env.dataset or env.instances"
            )
        return instances

    @cached_property
    def held_out(self) -> Sequence[Instance]:
        return self.parts.env.instances(self._config.env.eval_split)

    @cached_property
    def sampler(self) -> PromptSampler:
        """The order of the training instances. Raises UserError where there are too few for a step."""
        rollout, size, rates = self._config.rollout, len(self.instances), None
        chooses = rollout.instances is InstanceChoice.informative
        if chooses or rollout.prefix_replay:
            rates = PassRates(size, rollout.pass_rate_half_life_steps * rollout.prompts_per_step)
        prefixes = Prefixes(rates) if rates is not None and rollout.prefix_replay else None
        return PromptSampler(size, self._config.trainer.seed, rates, prefixes, chosen_by_rates=chooses)

    def prefix(self, index: int) -> Prefix | None:
        """What the next group of an instance begins with. For a thread of its own."""
        prefixes = self.sampler.prefixes
        choice = prefixes.choose(index) if prefixes is not None else None
        return None if choice is None else self._prefix_files.find(choice)

    def keep_sources(self, collected: Collected) -> None:
        """Of trajectories that are observed: those that others may begin with. For a thread of its own. Raises
        DiskError, TraceStoreError."""
        sources = self.sampler.prefixes.sources if self.sampler.prefixes is not None else set()
        for trajectory in collected.trajectories:
            if trajectory.trajectory_id in sources:
                self._prefix_files.put(trajectory, self.parts.store.traces(trajectory.trajectory_id))

    async def sample(self, step: int) -> Sampled:
        """A step's, with the weights that the engines hold. Where it fails, the order of the instances is as before."""
        started_s, before = time.monotonic(), self.sampler.state()
        try:
            collected = await sampled(
                self.sampler,
                lambda indices: self._generate(indices, step),
                self._config.algo,
                prompts=self._config.rollout.prompts_per_step,
                available=len(self.instances),
            )
            require_few_failures(collected.trajectories, self._config.rollout)
            require_some_in_time(collected.trajectories, self._config.rollout)
            indices = {instance.instance_id: index for index, instance in enumerate(self.instances)}
            facts = observed(self.sampler, collected.trajectories, indices)
            await asyncio.to_thread(self.keep_sources, collected)
        except BaseException:
            self.sampler.restore(before)
            raise
        return Sampled(collected, self.sampler.state(), {"generate_s": time.monotonic() - started_s}, facts)

    async def _generate(self, indices: Sequence[int], step: int) -> Collected:
        config, session, instances = self._config, self.session, [self.instances[index] for index in indices]
        begins = [await asyncio.to_thread(self.prefix, index) for index in indices] if self.sampler.prefixes else []
        prefixes = {
            instance.instance_id: prefix
            for instance, prefix in zip(instances, begins, strict=False)
            if prefix is not None
        }
        with session.progress.phase("generate", trajectories=len(instances) * config.rollout.n):

            def record(event: str, fields: Mapping[str, object]) -> None:
                session.steps.append_programs(step, event, [fields])

            async with watched(self.parts.engines, record, step=step):
                return await self._collect(
                    instances, config.env.split, step, config.rollout.n, config.rollout.temperature, prefixes=prefixes
                )

    async def measure(
        self,
        step: int,
        *,
        known: Known = NONE_KNOWN,
        on_done: OnDone | None = None,
        places: asyncio.Semaphore | None = None,
    ) -> tuple[Collected, dict[str, Any]]:
        """The held-out split under the weights of `step`, and its numbers. `known`, `on_done`, `places`: see Collector.

        Whether too much of it failed is asked afterwards: its verdicts are there all the same.
        """
        session, rollout, split = self.session, self._config.rollout, self._config.env.eval_split
        started_s, shown = time.monotonic(), 0 if places else len(self.held_out) * rollout.eval_n
        with session.progress.phase("eval", trajectories=shown):
            for trajectory in known.values():
                session.progress.trajectory(trajectory.status, trajectory.sampled_tokens)
            name, n = f"{EVALUATION}{split}", rollout.eval_n
            temperature = rollout.eval_temperature
            collected = await self._collect(self.held_out, name, step, n, temperature, known, on_done, places)
        whole, took_s = self.parts.env.split_instances(split), time.monotonic() - started_s
        return collected, eval_numbers(collected, step=step, split=split, eval_s=took_s, split_instances=whole)

    async def evaluate(self, step: int, places: asyncio.Semaphore | None = None) -> None:
        """The held-out measure, and its records. `places`: shared with rollouts that go on. Raises RolloutError."""
        collected, numbers = await self.measure(step, places=places)
        require_few_failures(collected.trajectories, self._config.rollout)
        await asyncio.to_thread(self._count, collected)
        self.session.steps.append_trajectories(step, _records(collected), evaluation=True, ours=OUR_WORDS)
        kill_point("eval_trajectories_written")
        self.session.evaluated(numbers)
        kill_point("eval_recorded")
        self.session.progress.eval_done(f"{headline(numbers)}, after step {step}", *line_of(numbers))
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
        prefixes: Mapping[str, Prefix] = NO_PREFIXES,
    ) -> Collected:
        """`name`: the split, in the names of its trajectories. `places`: of others, whose trajectories are shown."""

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
                prefixes=prefixes,
            )
        )
        await self.parts.store.flush()
        kill_point("traces_flushed")
        return collected

    def ended(self, trajectory: Trajectory, *, counted: bool = True) -> None:
        """Shown, and taken for a sign of life. `counted`: among those that are waited for. Raises DiskError."""
        progress = self.session.progress
        if counted:
            progress.trajectory(trajectory.status, trajectory.sampled_tokens)
        progress.detail(trajectory.to_record)
        self.session.status.heartbeat()

    async def _while_trainer_lives(self, work: Coroutine[Any, Any, Collected]) -> Collected:
        """Raises what ended it."""
        task, looking = asyncio.ensure_future(work), asyncio.ensure_future(self.trainer_lives())
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
        """Returns never. Raises what ended it. It is looked at: ranks that end elsewhere wake nobody here."""
        while True:
            await asyncio.sleep(_LOOK_S)
            failure = self._failure()
            if failure is not None:
                raise failure

    def _count(self, collected: Collected) -> None:
        for trajectory in collected.trajectories:
            count_tokens(trajectory, self.parts.store.traces(trajectory.trajectory_id))

    def rows(self, collected: Collected) -> tuple[list[Row], dict[str, float]]:
        """Without advantages yet; and how far rendering again is off, where that is what is trained on. Each
        trajectory's prompt and response lengths are filled in.

        For a thread of its own. The traces of one trajectory are in memory at a time. Raises RowError,
        TraceStoreError.
        """
        traced, masks = self._config.rollout.capture is Capture.traced, self._config.rollout.filter_token_mismatch
        mismatch, renderer, rows = Mismatch(), self.parts.renderer, list[Row]()
        for trajectory, result in zip(collected.trajectories, collected.results, strict=True):
            traces = self.parts.store.traces(trajectory.trajectory_id)
            count_tokens(trajectory, traces)
            if traced:
                rows += traced_rows(trajectory, traces)
            else:
                rows += retokenized_rows(trajectory, result, traces, renderer, mismatch, masks=masks)
        return rows, {} if traced else mismatch.rates()

    def record(self, step: int, collected: Collected) -> None:
        """A step's trajectories, and an event for each with its phases, replaced attempts too. As `rows`, for a thread
        of its own. Raises DiskError, TraceStoreError."""
        self.session.steps.append_trajectories(step, _records(collected), ours=OUR_WORDS)
        kill_point("trajectories_written")
        first = next(iter_jsonl(self.session.folder.events_jsonl), {})  # seconds are since the run's first event
        events = (
            program_event(trajectory, self.parts.store.traces(trajectory.trajectory_id), first.get("time", 0.0))
            for trajectory in (*collected.trajectories, *collected.retried)
        )
        self.session.steps.append_programs(step, "program", events)
        kill_point("programs_written")
        self._remember(step, collected)

    def keep_rows(self, step: int, rows: Sequence[Row]) -> None:
        """Where traces are not kept. Raises DiskError."""
        if self._config.gateway.keep_traces is KeepTraces.rows:
            keep(rows, self.session.folder.rows(step))

    def forget_after(
        self, step: int, *, evaluation: bool, trained: Collection[str] | None = None, queued: Collection[str] = ()
    ) -> None:
        """Traces of later steps. `evaluation`: and all there is of the one after `step`, as half of one is none.

        Where groups flow, those of training stay whose groups were `trained` or are `queued`, whatever step their names
        say.
        """
        if evaluation:
            self.session.folder.eval_trajectories(step).unlink(missing_ok=True)
        remove_left(self.session.folder.rows_folder)
        splits = self._config.env.split, f"{EVALUATION}{self._config.env.eval_split}"
        ids = [parsed for name in self.parts.store.sessions() if (parsed := TrajectoryId.parse(name, splits))]
        half = step if evaluation else step + 1  # from here on evaluations go, too
        late = {id for id in ids if (id.step >= half if id.is_evaluation else id.step > step)}
        if trained is not None:
            stays = {*trained, *queued}
            late = {id for id in ids if (id.step >= half if id.is_evaluation else id.group_id not in stays)}
        self.parts.store.delete([str(id) for id in late])
        self._sessions = {step: [str(id) for id in ids if id not in late and id.group_id not in queued]}

    def forget_through(self, step: int) -> None:
        """Traces of what was trained or evaluated up to `step`, unless they are kept. No resume asks for them again."""
        if self._config.gateway.keep_traces is KeepTraces.all:
            return
        covered = [past for past in self._sessions if past <= step]
        self.parts.store.delete([name for past in covered for name in self._sessions.pop(past)])

    def forget_sources(self, order: SamplerState) -> None:
        """A checkpoint has `order`: what neither it, the one before nor any choice from now on names goes.

        Raises DiskError."""
        if self.sampler.prefixes is None:
            return
        named, before = sources_of(order.get("prefixes") or PrefixesState(sources=[])), self._named
        if before is not None:  # else an earlier start wrote the one before
            self._prefix_files.keep_only(named | before | self.sampler.prefixes.sources)
        self._named = named

    def _remember(self, step: int, collected: Collected) -> None:
        names = [trajectory.trajectory_id for trajectory in (*collected.trajectories, *collected.retried)]
        self._sessions.setdefault(step, []).extend(names)


def _records(collected: Collected) -> list[dict[str, Any]]:
    return [trajectory.to_record() for trajectory in (*collected.trajectories, *collected.retried)]
