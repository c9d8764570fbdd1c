"""Runs the rollouts of `rollout.mode=stream`: groups flow under names of nominal steps, with a queue on disk.

Invariants:
- A complete group is a file of the run's queue before anybody learns from it, and after all its traces are committed. A
  resumed run takes it from there; a group that is not complete is sampled again, under the same names.
- A file stays until two checkpoints know its group as trained: a run may have to go back behind the newest one.
- Group k has the names of step k // prompts + 1, whichever step trains it. With `rollout.instances=informative` its
  instance depends on what was known when it began; a complete group keeps its own over a resume.
- An evaluation goes on beside all of it, in the places of the rollouts, before any that begin later. The engines keep
  the weights that it names until it ends; what is trained meanwhile takes room in the flow, so that at most `1 + ahead`
  steps are trained until then.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from swe_rl.algo.row import Row
from swe_rl.config.choices import INFRA_STATUSES, DynamicSampling, InstanceChoice
from swe_rl.config.schema import Config
from swe_rl.engine.engine import Engine
from swe_rl.engine.watch import watch_engines
from swe_rl.facts.schedule import rollout_at, scheduled_numbers
from swe_rl.facts.sizes import most_at_once
from swe_rl.files.disk import disk_error, write_bytes_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.files.kill_point import kill_point
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.rollout.collect import (
    AttemptPlace,
    Collected,
    RolloutError,
    require_few_failures,
    require_some_in_time,
    require_some_understood,
)
from swe_rl.rollout.counts import groups_of
from swe_rl.rollout.flow import Attempted, Flow, Pace
from swe_rl.rollout.order.sampler import Begun, GroupOrder
from swe_rl.rollout.order.sampler_state import SamplerState
from swe_rl.rollout.trajectory import OUR_WORDS, Status, Trajectory, TrajectoryId
from swe_rl.run.rollouts import Rollouts, SampledStep

# So much time is between two looks at the engines' load.
_LOOK_S = 0.1


class GroupQueue:
    """The queue of complete groups, a file each."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._redactor = Redactor.from_environ()

    def put(self, number: int, collected: Collected) -> None:
        """Writes a group. Raises DiskError."""
        head: dict[str, Any] = {"trajectories": len(collected.trajectories)}
        records = [trajectory.to_record() for trajectory in (*collected.trajectories, *collected.retried)]
        lines = [self._redactor.record_json(encode_json(record), OUR_WORDS) for record in (head, *records)]
        write_bytes_atomic(self._folder.queued_group(number), b"".join(line + b"\n" for line in lines))

    def find(self, number: int) -> Collected | None:
        """Returns a group; None where there is none, nothing that can be read, or one in which infrastructure failed.

        Such a group is sampled again by whoever goes on, as it may have ended the run.
        """
        try:
            head, *records = read_jsonl(self._folder.queued_group(number))
            ended = [Trajectory.from_record(record) for record in records]
            count = int(head["trajectories"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if any(trajectory.status in INFRA_STATUSES for trajectory in ended[:count]):
            return None
        return Collected(ended[:count], [None] * count, ended[count:])

    def numbers(self) -> list[int]:
        return sorted(int(path.stem.partition("_")[2]) for path in self._folder.queue.glob("group_*.jsonl"))

    def remove_failed(self) -> None:
        """Removes groups in which infrastructure or time failed a trajectory. Raises DiskError."""
        groups = {number: self.find(number) for number in self.numbers()}
        self.remove(
            number
            for number, group in groups.items()
            if group is None or any(trajectory.status is Status.agent_timeout for trajectory in group.trajectories)
        )

    def remove(self, numbers: Iterable[int]) -> None:
        """Removes groups. Raises DiskError."""
        for number in numbers:
            path = self._folder.queued_group(number)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise disk_error(path, error) from error
            kill_point("queue_pruned")


class GroupStream:
    """The stream of one start of a run; `rollouts` are its parts."""

    def __init__(self, config: Config, rollouts: Rollouts, *, ahead: int) -> None:
        self._config = config
        self._rollouts = rollouts
        self._order = GroupOrder(rollouts.sampler, config.rollout.prompts_per_step)
        self._queue = GroupQueue(rollouts.session.folder)
        self._ahead = ahead
        self._flow: Flow | None = None
        # It is the order of the checkpoint before the newest.
        self._before: SamplerState | None = None
        self._taken_s = 0.0
        # The engines' loads belong to the timeline of this step.
        self._sampling = 0
        self._engines_idle_s = 0.0
        # These are ids of groups that an earlier start sampled.
        self._earlier: set[str] = set()

    def restored(self, order: SamplerState | None, step: int) -> SamplerState:
        """Goes back to where `step` left the order, or to the start. Returns that order. Raises DiskError.

        Complete groups of instances that are gone are forgotten.
        """
        there = {instance.instance_id for instance in self._rollouts.instances}
        self._queue.remove(
            number for number, group in self._whole().items() if group.trajectories[0].instance_id not in there
        )
        if order is not None:
            self._order.restore(order, step)
        if self._config.rollout.instances is InstanceChoice.informative:
            indices = {instance.instance_id: index for index, instance in enumerate(self._rollouts.instances)}
            names = {number: group.trajectories[0].instance_id for number, group in self._whole().items()}
            self._order.keep({number: indices[name] for number, name in names.items() if name in indices})
        return self._order.state([])

    def whole_groups(self) -> set[str]:
        """Returns the ids of the groups whose traces a resumed run goes on with."""
        return {trajectory.group_id for group in self._whole().values() for trajectory in group.trajectories}

    def _whole(self) -> dict[int, Collected]:
        """Returns the complete groups by number."""
        groups = {number: self._queue.find(number) for number in self._queue.numbers()}
        return {number: group for number, group in groups.items() if group is not None}

    @asynccontextmanager
    async def flowing(self, step: int) -> AsyncIterator[None]:
        """Samples groups inside the block, for the steps after `step`."""
        rollout = self._config.rollout
        algo = self._config.algo
        replaces = algo.dynamic_sampling is DynamicSampling.resample
        pace = Pace(
            n=rollout.n,
            concurrency=most_at_once(self._config),
            prompts=rollout.prompts_per_step,
            ahead=self._ahead,
            max_rounds=algo.max_resample_rounds if replaces else None,
        )
        parts = self._rollouts.parts
        session = self._rollouts.session
        steps = self._config.trainer.steps - step

        def left(begun: Begun, trajectories: int) -> None:
            parts.gateway.group_left(self._name(begun, 0).group_id, trajectories)

        steering = parts.steering
        places = None if steering is None else steering.make_places()
        self._flow = Flow(self._order, self, pace, steps, parts.collector.on_tail, left, places)
        beside: list[Coroutine[Any, Any, None]] = [self._rollouts.trainer_lives(), self._idles(parts.engines)]
        if parts.collector.watch is not None:
            beside.append(parts.collector.watch())
        if steering is not None:
            beside.append(steering.steer())
        self._taken_s = time.monotonic()
        self._sampling = step + 1

        def record(event: str, fields: Mapping[str, object]) -> None:
            if self._sampling <= self._config.trainer.steps:
                session.steps.append_programs(self._sampling, event, [{**fields, "step": self._sampling}])

        async with watch_engines(parts.engines, record), self._flow.flowing(*beside):
            yield

    async def take(self, step: int) -> SampledStep:
        """Returns what `step` trains. Raises RolloutError."""
        rollout = self._config.rollout
        waited_s = time.monotonic()
        with self._rollouts.session.progress.phase("generate", trajectories=rollout.prompts_per_step * rollout.n):
            taken = await self.flow.take()
        now_s = time.monotonic()
        times_s = {"generate_s": now_s - self._taken_s, "trainer_idle_s": now_s - waited_s}
        times_s["engines_idle_s"] = self._engines_idle_s
        self._engines_idle_s = 0.0
        self._taken_s = now_s
        # Nobody else writes into that step's files yet.
        self._sampling = step + 1
        kill_point("groups_taken")
        try:
            require_few_failures(taken.collected.trajectories, rollout)
            require_some_in_time(taken.collected.trajectories, rollout)
            require_some_understood(taken.collected.trajectories)
        # Whoever goes on samples them again.
        except RolloutError:
            await asyncio.to_thread(self._queue.remove_failed)
            raise
        facts: dict[str, Any] = {
            "groups": list(groups_of(taken.collected.trajectories)),
            "begun": _by_beginning(taken.collected.trajectories),
            "queued_groups": taken.queued,
            "open_groups": taken.under_way,
            **taken.foreseen,
            **scheduled_numbers(rollout, step),
            **self._rollouts.steered(),
        }
        # This start spent no time on them, so a rate would be wrong.
        if self._earlier.intersection(facts["groups"]):
            facts |= {"tokens_per_s": None, "sampled_tokens_per_s": None}
        return SampledStep(taken.collected, taken.order, times_s, facts)

    @property
    def flow(self) -> Flow:
        """The flow of the block that the run is in."""
        assert self._flow is not None
        return self._flow

    def saved(self, order: SamplerState) -> None:
        """Notes that a checkpoint has `order`. Raises DiskError."""
        before = self._before
        self._before = order
        if before is not None and (flow := before.get("flow")) is not None:
            needed = {number for number, _ in flow["begun"]}
            gone = [number for number in self._queue.numbers() if number < flow["next"] and number not in needed]
            self._queue.remove(gone)

    def ended(self) -> None:
        """Empties the queue: nothing comes after the newest checkpoint. Raises DiskError."""
        self._queue.remove(self._queue.numbers())

    def known(self, begun: Begun) -> Collected | None:
        collected = self._queue.find(begun.number)
        name = self._name(begun, 0).group_id
        if collected is None or len(collected.trajectories) != self._config.rollout.n:
            return None
        if any(trajectory.group_id != name for trajectory in collected.trajectories):
            return None
        for trajectory in collected.trajectories:
            self._rollouts.ended(trajectory)
        self._earlier.add(name)
        return collected

    async def attempt(self, begun: Begun, sample: int, retried: list[Trajectory], place: AttemptPlace) -> Attempted:
        collector = self._rollouts.parts.collector
        instance = self._rollouts.instances[begun.index]
        name = self._name(begun, sample)
        temperature = rollout_at(self._config.rollout, name.step).temperature
        trajectory, result = await collector.attempts(instance, name, temperature, retried, place)
        self._rollouts.ended(trajectory)
        return trajectory, result

    async def keep(self, begun: Begun, collected: Collected) -> None:
        await self._rollouts.parts.store.flush()
        kill_point("group_complete")
        await asyncio.to_thread(self._queue.put, begun.number, collected)
        kill_point("group_queued")

    def _name(self, begun: Begun, sample: int) -> TrajectoryId:
        instance = self._rollouts.instances[begun.index]
        return TrajectoryId(self._config.env.split, self._order.step_of(begun.number), instance.instance_id, sample, 0)

    async def _idles(self, engines: list[Engine]) -> None:
        """Counts the time in which no engine has a request, by looking now and then."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            before_s = looked_s
            looked_s = time.monotonic()
            if all(stats.running + stats.waiting == 0 for stats in (engine.stats() for engine in engines)):
                self._engines_idle_s += looked_s - before_s


def _by_beginning(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Returns how many there are, what they sampled and how long their commands took, by the step of their names."""
    table: dict[str, dict[str, float]] = {}
    for ended in trajectories:
        sums = table.setdefault(str(ended.step), {"trajectories": 0, "sampled_tokens": 0, "command_s": 0.0})
        sums["trajectories"] += 1
        sums["sampled_tokens"] += ended.sampled_tokens
        sums["command_s"] = round(sums["command_s"] + ended.times_s.get("command", 0.0), 3)
    return table


def token_staleness(rows: Sequence[Row], version: int) -> dict[str, Any]:
    """Returns by how many versions the trainer's weights were ahead of those that sampled a token.

    It is over all sampled tokens of a step that trains weights of `version`; `token_staleness` counts tokens by it.
    """
    ages: Counter[int] = Counter()
    for row in rows:
        sampled_by, counts = np.unique(row.weight_versions, return_counts=True)
        for sampler, count in zip(sampled_by.tolist(), counts.tolist(), strict=True):
            ages[max(0, version - sampler)] += count
    tokens = sum(ages.values())
    return {
        "token_staleness_mean": sum(age * count for age, count in ages.items()) / tokens if tokens else None,
        "token_staleness_max": max(ages, default=None),
        "token_staleness": {str(age): ages[age] for age in sorted(ages)},
    }
