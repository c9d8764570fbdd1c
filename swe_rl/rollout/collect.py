"""Collects a step: groups of trajectories, with retries, to their full count.

Invariants:
- A step has exactly `prompts * n` trajectories, masked or not, in an order that does not depend on timing.
- A trajectory's sampling seed depends on run seed, split, step, instance, sample and attempt only.
- Past `rollout.max_infra_failure_rate` of a whole step, groups that were sampled again counted in, the run stops and
  names the instances. So it does where time ran out for (nearly) all of a step's agents.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from swe_rl.agent.agent import AgentResult
from swe_rl.config.choices import INFRA_STATUSES, CompactionKind
from swe_rl.config.schema import RolloutConfig
from swe_rl.dataset.instance import Instance
from swe_rl.errors import RunError
from swe_rl.facts.schedule import rollout_at
from swe_rl.gateway.session import SessionSettings
from swe_rl.rollout.places import Places
from swe_rl.rollout.trajectory import Order, Status, Trajectory, TrajectoryId

# This share of a step may run out of time; where nearly all do, the limit is to blame and not the policy.
_MOST_TIMEOUTS = 0.9
OnDone = Callable[[Trajectory, AgentResult | None], Awaitable[None] | None]
# Its keys are instance and sample.
Known = Mapping[tuple[str, int], Trajectory]
NONE_KNOWN: Known = MappingProxyType({})


class RolloutError(RunError):
    """Too much of a step failed for reasons that are not the policy's."""


def require_few_failures(trajectories: Sequence[Trajectory], rollout: RolloutConfig) -> None:
    """Raises RolloutError where too much of a whole step or evaluation failed.

    A single failure among others is none of a system, unless none is allowed.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.status in INFRA_STATUSES]
    limit = rollout.max_infra_failure_rate
    alone = len(failed) == 1 < len(trajectories) and limit > 0.0
    if alone or len(failed) <= limit * len(trajectories):
        return
    names = sorted({trajectory.instance_id for trajectory in failed})
    raise RolloutError(
        f"{len(failed)} of {len(trajectories)} trajectories ({len(failed) / len(trajectories):.0%}) failed for reasons "
        f"of infrastructure, more than rollout.max_infra_failure_rate={limit:g} allows; instances: "
        f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}. "
        f"The first said: {failed[0].status}: {failed[0].error}"
    )


def require_some_in_time(trajectories: Sequence[Trajectory], rollout: RolloutConfig) -> None:
    """Raises RolloutError where (nearly) every agent of a whole step ran out of time.

    The limit or the machine ends them then, and nothing can be learned. Failures of infrastructure are not counted in,
    and a single trajectory says nothing.
    """
    ours = [trajectory for trajectory in trajectories if trajectory.status not in INFRA_STATUSES]
    late = [ended for ended in ours if ended.status is Status.agent_timeout]
    if len(late) < 2 or len(late) <= _MOST_TIMEOUTS * len(ours):
        return
    mean = {kind: sum(ended.times_s.get(kind, 0.0) for ended in late) / len(late) for kind in ("command", "decode")}
    calls = sum(ended.num_calls for ended in late) / len(late)
    raise RolloutError(
        f"{len(late)} of {len(ours)} trajectories ({len(late) / len(ours):.0%}) ended in agent_timeout, more than "
        f"{_MOST_TIMEOUTS:.0%} of a step may: nothing can be learned from them. On average {calls:.1f} calls were "
        f"answered, decoding took {mean['decode']:.1f} s and the agent's own commands {mean['command']:.1f} s of "
        f"rollout.agent_timeout_s={rollout.agent_timeout_s:g}, without what was waited for. Raise it, or lower "
        f"rollout.concurrency or rollout.max_turn_tokens; with other values it is a new run"
    )


def require_some_understood(trajectories: Sequence[Trajectory]) -> None:
    """Raises RolloutError where the gateway refused (nearly) every program of a whole step for the form of its
    requests.

    Nothing can be learned then, and the next step would be no better.
    """
    refused = [ended for ended in trajectories if ended.status is Status.request_refused]
    if len(refused) < 2 or len(refused) <= _MOST_TIMEOUTS * len(trajectories):
        return
    raise RolloutError(
        f"{len(refused)} of {len(trajectories)} trajectories ({len(refused) / len(trajectories):.0%}) ended in "
        f"request_refused, more than {_MOST_TIMEOUTS:.0%} of a step may: the program sends what the gateway cannot "
        f"answer (docs/engineering/dialects.md). The first said: {refused[0].error}"
    )


class RunsAttempts(Protocol):
    async def run(self, order: Order) -> tuple[Trajectory, AgentResult | None]: ...


@dataclass(slots=True)
class Collected:
    """The trajectories in order of instance and sample; `results[i]` is what the agent of `trajectories[i]` left."""

    trajectories: list[Trajectory]
    results: list[AgentResult | None]
    # These attempts were replaced by another one.
    retried: list[Trajectory] = field(default_factory=list)


def sampling_seed(seed: int, name: str) -> int:
    """Returns 63 bits that depend on nothing but the run's seed and the trajectory's name."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big") >> 1


class AttemptPlace:
    """One of those places that may act at once. It is taken and given back as often as there are attempts."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_held = False

    async def take(self) -> None:
        """Waits for the place, unless it is held."""
        if not self._is_held:
            await self._places.acquire()
            self._is_held = True

    def give_back(self) -> None:
        """Gives the place back. It may be called twice."""
        if self._is_held:
            self._is_held = False
            self._places.release()


class Collector:
    """Collects trajectories. `on_tail` is told when a step begins (False) and when its last trajectory has begun
    (True).

    `watch` and `steer` go on beside a step's trajectories, and end them with what they raise. `make_places` makes the
    places of a step; without it there are `rollout.concurrency`. `delegates` tells whether the agent may have
    sub-agents.
    """

    def __init__(
        self,
        attempter: RunsAttempts,
        rollout: RolloutConfig,
        seed: int,
        on_tail: Callable[[bool], None] | None = None,
        watch: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        delegates: bool = False,
    ) -> None:
        self._attempter = attempter
        self._delegates = delegates
        self._rollout = rollout
        self._seed = seed
        self.on_tail = on_tail or (lambda _: None)
        self.watch = watch
        # A step's places are made by this.
        self.make_places: Callable[[], Places] = partial(Places, int(rollout.concurrency))
        # This changes their number beside a step's trajectories; None where it stays.
        self.steer: Callable[[], Coroutine[Any, Any, None]] | None = None
        # This gives what was recorded of an attempt that broke to the one in its place; None: it begins anew.
        self.hand_over: Callable[[str, str], None] | None = None
        # So many attempts of `collect` have begun, and are not graded and handed to `on_done` yet.
        self.num_under_way = 0

    async def collect(
        self,
        instances: Sequence[Instance],
        *,
        split: str,
        step: int,
        n: int,
        temperature: float,
        on_done: OnDone | None = None,
        known: Known = NONE_KNOWN,
        places: asyncio.Semaphore | None = None,
    ) -> Collected:
        """Returns `n` trajectories of each instance; those that are `known` are not run again.

        `places` are shared with others, who know when no trajectory is left that has not begun, and watch. Raises
        TraceStoreError, and what `watch` raises.
        """
        alone = places is None
        limit = places or self.make_places()
        collected = Collected([], [])
        waiting_to_begin = len(instances) * n - len(known)
        if alone:
            self.num_under_way = 0
            self.on_tail(False)

        async def attempted(instance: Instance, sample: int) -> tuple[Trajectory, AgentResult | None]:
            nonlocal waiting_to_begin
            if (earlier := known.get((instance.instance_id, sample))) is not None:
                return earlier, None
            name = TrajectoryId(split, step, instance.instance_id, sample, 0)
            if not alone:
                done = await self.attempts(instance, name, temperature, collected.retried, AttemptPlace(limit))
            else:
                async with limit:
                    self.num_under_way += 1
                    waiting_to_begin -= 1
                    if waiting_to_begin == 0:
                        self.on_tail(True)
                    done = await self.attempts(instance, name, temperature, collected.retried)
            if on_done:
                waiting = on_done(*done)
                if waiting:
                    await waiting
            self.num_under_way -= alone
            return done

        first: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group, self._watching(group if alone else None):
                tasks = [
                    group.create_task(attempted(instance, sample)) for instance in instances for sample in range(n)
                ]
                if tasks:
                    await asyncio.wait(tasks)
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        if first is not None:
            # It ended the others; its own words and its own cause matter.
            raise first
        for task in tasks:
            trajectory, result = task.result()
            collected.trajectories.append(trajectory)
            collected.results.append(result)
        collected.retried.sort(key=lambda broken: broken.trajectory_id)
        return collected

    @asynccontextmanager
    async def _watching(self, group: asyncio.TaskGroup | None) -> AsyncIterator[None]:
        works = (self.watch, self.steer) if group is not None else ()
        beside = [group.create_task(work()) for work in works if group is not None and work is not None]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()

    async def attempts(
        self,
        instance: Instance,
        name: TrajectoryId,
        temperature: float,
        retried: list[Trajectory],
        place: AttemptPlace | None = None,
    ) -> tuple[Trajectory, AgentResult | None]:
        """Returns one trajectory, repeated as the table of outcomes allows; what was repeated goes to `retried`.

        `place` is held while an agent acts and not while it is graded; None says that the caller has one for all of it.
        """
        while True:
            try:
                if place is not None:
                    await place.take()
                order = self._order(instance, name, temperature, place)
                trajectory, result = await self._attempter.run(order)
            finally:
                if place is not None:
                    place.give_back()
            allowed = self._rollout.outcomes[trajectory.status.value].retries
            if name.attempt >= min(allowed, self._rollout.infra_retries):
                return trajectory, result
            retried.append(trajectory)
            again = replace(name, attempt=name.attempt + 1)
            if self.hand_over is not None and again.attempt == 1:
                await asyncio.to_thread(self.hand_over, str(name), str(again))
            name = again

    def _order(self, instance: Instance, name: TrajectoryId, temperature: float, place: AttemptPlace | None) -> Order:
        limits = self._rollout if name.is_evaluation else rollout_at(self._rollout, name.step)
        settings = SessionSettings(
            temperature=temperature,
            top_p=self._rollout.top_p,
            top_k=self._rollout.top_k,
            min_p=self._rollout.min_p,
            max_turn_tokens=self._rollout.max_turn_tokens,
            max_trajectory_tokens=limits.max_trajectory_tokens,
            max_prompt_tokens=self._rollout.max_prompt_tokens,
            max_total_tokens=self._rollout.max_total_tokens,
            has_segments=self._delegates or self._rollout.compaction is not CompactionKind.none,
            seed=sampling_seed(self._seed, str(name)),
            group_id=name.group_id,
        )
        if place is None:
            return Order(instance, name, settings)
        return Order(instance, name, settings, place.give_back)
