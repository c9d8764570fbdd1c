"""This module keeps sandboxes ready, so that the next trajectory of an instance does not wait for its container.

Invariants:
- At most `per_recipe` are ready or on their way for one recipe, and `total` over all; the recipe that was asked for
  least recently makes room.
- What is handed out was alive at that moment; what is not handed out is discarded by `close`.
- A start that fails here is nobody's error: the next caller starts its own and sees the reason.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Recipe = TypeVar("Recipe")
Made = TypeVar("Made")


@dataclass(slots=True)
class _Shelf(Generic[Made]):
    ready: deque[Made] = field(default_factory=deque)
    starting: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def size(self) -> int:
        return len(self.ready) + len(self.starting)


class WarmPool(Generic[Recipe, Made]):
    """This pool makes sandboxes by `start` and ends them by `discard`; `alive` tells whether one still lives."""

    def __init__(
        self,
        start: Callable[[Recipe], Awaitable[Made]],
        discard: Callable[[Made], Awaitable[None]],
        alive: Callable[[Made], bool],
        *,
        per_recipe: int,
        total: int,
    ) -> None:
        self._start = start
        self._discard = discard
        self._alive = alive
        self._per_recipe = per_recipe
        self._total = total
        self._shelves: OrderedDict[Recipe, _Shelf[Made]] = OrderedDict()
        self._discarding: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def ready(self) -> int:
        """Returns how many sandboxes are ready."""
        return sum(len(shelf.ready) for shelf in self._shelves.values())

    def everyone(self) -> list[Made]:
        """Returns the sandboxes that are ready."""
        return [made for shelf in self._shelves.values() for made in shelf.ready]

    def take(self, recipe: Recipe) -> Made | None:
        """Returns a living sandbox of this recipe, or None where none is ready. Either way more are made ready."""
        if self._closed or not self._per_recipe:
            return None
        shelf = self._shelves.setdefault(recipe, _Shelf())
        self._shelves.move_to_end(recipe)
        living: Made | None = None
        while shelf.ready and living is None:
            made = shelf.ready.popleft()
            if self._alive(made):
                living = made
            else:
                self._throw_away(made)
        self._refill(recipe, shelf)
        return living

    async def close(self) -> None:
        """Ends the starts that go on, and discards all that is ready."""
        self._closed = True
        starting = [task for shelf in self._shelves.values() for task in shelf.starting]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        for made in self.everyone():
            self._throw_away(made)
        self._shelves.clear()
        await asyncio.gather(*self._discarding, return_exceptions=True)

    def _refill(self, recipe: Recipe, shelf: _Shelf[Made]) -> None:
        while shelf.size < self._per_recipe and self._has_room(recipe):
            task = asyncio.ensure_future(self._make(recipe, shelf))
            shelf.starting.add(task)
            task.add_done_callback(shelf.starting.discard)

    def _has_room(self, recipe: Recipe) -> bool:
        while sum(shelf.size for shelf in self._shelves.values()) >= self._total:
            oldest = next(iter(self._shelves))
            if oldest == recipe:
                return False
            shelf = self._shelves.pop(oldest)
            for task in shelf.starting:
                task.cancel()
            for made in shelf.ready:
                self._throw_away(made)
        return True

    async def _make(self, recipe: Recipe, shelf: _Shelf[Made]) -> None:
        try:
            made = await self._start(recipe)
        except Exception:
            return
        if self._closed or self._shelves.get(recipe) is not shelf:
            self._throw_away(made)
        else:
            shelf.ready.append(made)

    def _throw_away(self, made: Made) -> None:
        task = asyncio.ensure_future(self._discard(made))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)
