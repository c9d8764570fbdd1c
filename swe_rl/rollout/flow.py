"""Lets groups flow: they begin in one order, are sampled side by side, and are trained oldest first.

Invariants:
- Groups begin in the order of `GroupOrder`, and so do their trajectories: whoever begins waits for a place first.
- At most `(1 + ahead) * prompts` groups are begun and not in the engines' weights yet, and never more than the steps
  that are left train, also while the engines wait for weights. So most groups are at most `ahead` steps old when they
  are trained. A slow group is overtaken by others, each of which makes room for a new one: no number bounds its age.
  What is begun is trained. Nothing that completes is thrown away, for a slow trajectory would be thrown away more often
  than a fast one.
- `take` gives the oldest complete groups, in the order in which they began, as soon as there are enough of them. A slow
  group is overtaken, and trained when it is complete.
- With `resample` a group of equal rewards counts as trained as soon as it is complete: another one begins in its place.
  Those of a step are handed over with it, at most `max_rounds * prompts` of them for one step to wait.
- Whoever shares the places of a flow waits in one line with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_rl.agent.agent import AgentResult
from swe_rl.rollout.collect import AttemptPlace, Collected
from swe_rl.rollout.counts import degenerate_groups
from swe_rl.rollout.order.sampler import Begun, GroupOrder
from swe_rl.rollout.order.sampler_state import SamplerState
from swe_rl.rollout.places import Places
from swe_rl.rollout.trajectory import Trajectory

Attempted = tuple[Trajectory, AgentResult | None]


class RunsGroups(Protocol):
    """Makes the trajectories of a flow."""

    def known(self, begun: Begun) -> Collected | None:
        """Returns the whole group, where an earlier start of the run has completed it, or None."""
        ...

    async def attempt(self, begun: Begun, sample: int, retried: list[Trajectory], place: AttemptPlace) -> Attempted:
        """Returns one trajectory. `place` is held when this is called, and given back by it."""
        ...

    async def keep(self, begun: Begun, collected: Collected) -> None:
        """Keeps a complete group: it outlives the process when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a flow: `n` trajectories a group, `concurrency` at once, `prompts` groups a step, `ahead` steps.

    `max_rounds` are those of resampling; None where groups of equal rewards are not replaced.
    """

    n: int
    concurrency: int
    prompts: int
    ahead: int
    max_rounds: int | None = None


@dataclass(eq=False, slots=True)
class _FlowGroup:
    begun: Begun
    # Its keys are samples.
    ended: dict[int, Attempted] = field(default_factory=dict)
    retried: list[Trajectory] = field(default_factory=list)
    # It is set when the group is complete, and kept.
    collected: Collected | None = None

    def whole(self) -> Collected:
        in_order = [self.ended[sample] for sample in sorted(self.ended)]
        self.retried.sort(key=lambda broken: broken.trajectory_id)
        return Collected([ended[0] for ended in in_order], [ended[1] for ended in in_order], self.retried)


@dataclass(frozen=True, slots=True)
class Taken:
    """The groups that a step trains. `order` says how to go on after it.

    `queued` and `under_way` count groups that are complete, and that are begun and not complete, besides. `foreseen`
    says how well pass rates did.
    """

    numbers: list[int]
    collected: Collected
    order: SamplerState
    queued: int
    under_way: int
    foreseen: dict[str, float | int | None]


class Flow:
    """Begins groups and hands complete ones over. `on_tail(True)` is called when the last group of all has begun.

    `on_left(group, trajectories)` is called when a group begins and when one of its trajectories ends, with how many
    have not.
    """

    def __init__(
        self,
        order: GroupOrder,
        work: RunsGroups,
        pace: Pace,
        steps: int,
        on_tail: Callable[[bool], None] | None = None,
        on_left: Callable[[Begun, int], None] | None = None,
        places: Places | None = None,
    ) -> None:
        self._order = order
        self._work = work
        self._pace = pace
        self._on_tail = on_tail or (lambda _: None)
        self._on_left = on_left or (lambda *_: None)
        self.places = places or Places(pace.concurrency)
        self._steps_left = steps
        # These are begun and neither taken nor set aside.
        self._open: dict[int, _FlowGroup] = {}
        # These are of equal rewards, until the next step takes them along.
        self._aside: list[_FlowGroup] = []
        # These groups are taken; and these are trained, but the engines do not know it.
        self._training = self._unsent = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def flowing(self, *beside: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Lets groups begin inside the block, and `beside` go on; all of it ends with the block.

        What fails in one of them ends the block, and is raised as it is.
        """
        first: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                for work in (self._begin(), *beside):
                    self.start(work)
                yield
                for task in tuple(self._tasks):
                    task.cancel()
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        if first is not None:
            raise first

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts `work` inside of `flowing`: it ends with that, and ends it by what it raises."""
        assert self._group is not None
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def take(self) -> Taken:
        """Returns a step's groups, waited for. They count as begun until they are `trained` and `sent`."""
        await self._until(lambda: self._is_enough)
        complete = [group for _, group in sorted(self._open.items()) if group.collected is not None]
        chosen = complete[: self._pace.prompts]
        for group in chosen:
            del self._open[group.begun.number]
        self._training += len(chosen)
        every = sorted([*chosen, *self._aside], key=lambda group: group.begun.number)
        self._aside = []
        queued = len(complete) - len(chosen)
        foreseen = self._order.trained(
            [(group.begun, group.collected.trajectories) for group in every if group.collected is not None]
        )
        order = self._order.state(group.begun for group in self._open.values())
        numbers = [group.begun.number for group in every]
        return Taken(numbers, _merge_groups(every), order, queued, len(self._open) - queued, foreseen)

    def trained(self) -> None:
        """Notes that the step taken last is trained. Until its weights are `sent` its groups take room."""
        self._unsent = self._unsent + self._training
        self._training = 0
        self._steps_left -= 1

    def sent(self) -> None:
        """Notes that the engines have the weights of all that is trained."""
        self._unsent = 0
        self._tell()

    @property
    def _is_enough(self) -> bool:
        complete = sum(group.collected is not None for group in self._open.values())
        pace = self._pace
        looked_at = complete + len(self._aside)
        gives_up = pace.max_rounds is not None and looked_at >= (1 + pace.max_rounds) * pace.prompts
        return complete >= pace.prompts or gives_up

    @property
    def _has_room(self) -> bool:
        prompts = self._pace.prompts
        begun = len(self._open) + self._training
        return begun < self._steps_left * prompts and begun + self._unsent < (1 + self._pace.ahead) * prompts

    async def _begin(self) -> None:
        while True:
            await self._until(lambda: self._has_room)
            group = _FlowGroup(self._order.take())
            self._open[group.begun.number] = group
            group.collected = self._work.known(group.begun)
            if group.collected is not None:
                self._completed(group)
            else:
                self._on_left(group.begun, self._pace.n)
                for sample in range(self._pace.n):
                    place = AttemptPlace(self.places)
                    await place.take()
                    self.start(self._attempt(group, sample, place))
            self._on_tail(len(self._open) + self._training >= self._steps_left * self._pace.prompts)

    async def _attempt(self, group: _FlowGroup, sample: int, place: AttemptPlace) -> None:
        group.ended[sample] = await self._work.attempt(group.begun, sample, group.retried, place)
        self._on_left(group.begun, self._pace.n - len(group.ended))
        if len(group.ended) == self._pace.n:
            collected = group.whole()
            await self._work.keep(group.begun, collected)
            group.collected = collected
            self._completed(group)

    def _completed(self, group: _FlowGroup) -> None:
        assert group.collected is not None
        self._order.completed(group.begun, group.collected.trajectories)
        if self._pace.max_rounds is not None and degenerate_groups(group.collected.trajectories):
            del self._open[group.begun.number]
            self._aside.append(group)
        self._tell()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def _tell(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _merge_groups(groups: list[_FlowGroup]) -> Collected:
    whole = [group.collected for group in groups if group.collected is not None]
    return Collected(
        [trajectory for part in whole for trajectory in part.trajectories],
        [result for part in whole for result in part.results],
        [trajectory for part in whole for trajectory in part.retried],
    )
