"""Rollouts of the next step while the trainer works on this one (`trainer.max_staleness_steps`).

Invariants:
- Rollouts of step s are begun with the weights of step s - 1 - `ahead` or newer, and no weights change while they run:
  every token of a step is of one version. With `ahead` = 1 it is s - 2 exactly, whatever the timing.
- At most `ahead` steps are sampled and not trained: nothing is begun before what it needs is learned.
- The trainer learns one step at a time, in order; its weights are read between two steps only.
- Whatever fails ends both sides, and its own error is raised.
"""

import asyncio
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class OverlappedWork(Protocol[Item]):
    """What a loop does in two tasks at once."""

    async def sample(self, step: int) -> Item:
        """The step's rollouts, with the weights that the engines hold."""
        ...

    async def learn(self, step: int, item: Item) -> None:
        """Trains on them and records the step; not cut short."""
        ...

    async def refresh(self) -> None:
        """The trainer's weights into the engines, unless they have them."""
        ...

    async def evaluate_when_due(self) -> None: ...

    @property
    def served(self) -> int:
        """The version of the weights that the engines hold."""
        ...

    @property
    def evaluation_is_due(self) -> bool: ...


class Pipeline:
    """One run of steps `first` to `last`."""

    def __init__(self, work: OverlappedWork[Item], *, ahead: int) -> None:
        if ahead < 1:
            raise ValueError("a pipeline samples at least one step ahead")
        self._work, self._ahead = work, ahead
        self._engines, self._trainer = asyncio.Lock(), asyncio.Lock()
        self._sampled: asyncio.Queue[Item] = asyncio.Queue()
        self._learned, self._progress = 0, asyncio.Condition()

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
            raise error  # it ended the other side; its own words and its own cause matter

    async def _sample(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            async with self._engines:
                item = await self._work.sample(step)
            if step < last:
                await self._make_ready(step + 1)
            await self._sampled.put(item)  # not before: the trainer is idle while its weights are read

    async def _make_ready(self, step: int) -> None:
        """Waits until `step` may be sampled, then gives the engines the newest weights that can be had now."""
        needed = step - 1 - self._ahead
        async with self._progress:
            await self._progress.wait_for(lambda: self._learned >= needed)
        async with self._engines:
            if self._trainer.locked() and self._work.served >= needed:
                return  # it is learning, and what the engines have is new enough
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
