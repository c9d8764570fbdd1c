"""A bounded queue between many callers and one thread, which takes what has gathered instead of one item after another.

Invariants:
- Nothing is dropped and the order is kept; a full queue makes its callers wait, or tells them that it is full.
- The thread is woken once a group, not once an item: an event loop that puts items in does not compete with it for
  the interpreter while it answers.
- An item that is put `at_once`, and a queue that fills up, end the gathering.
"""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    """`take` waits `gather_s` seconds from the first item on; at most `limit` items wait."""

    def __init__(self, limit: int, gather_s: float) -> None:
        self._limit = limit
        self._many = max(1, limit // 4)
        self._gather_s = gather_s
        self._items: deque[T] = deque()
        self._taken: list[T] = []
        self._room = threading.Condition()
        self._some, self._hurry = threading.Event(), threading.Event()

    def try_put(self, item: T) -> bool:
        """False when the queue is full; waits for nothing."""
        with self._room:
            if len(self._items) >= self._limit:
                return False
            self._add(item)
            return True

    def put(self, item: T, *, at_once: bool = False) -> None:
        """Blocks while the queue is full."""
        with self._room:
            while len(self._items) >= self._limit:
                self._room.wait()
            self._add(item)
            if at_once:
                self._hurry.set()

    def take(self) -> list[T]:
        """All that waits, oldest first; blocks until there is something. For one thread only."""
        self._some.wait()
        self._hurry.wait(self._gather_s)
        return self.take_now()

    def take_now(self) -> list[T]:
        with self._room:
            taken = self._taken = list(self._items)
            self._items.clear()
            self._some.clear()
            self._hurry.clear()
            self._room.notify_all()
            return taken

    def done(self) -> None:
        """What was taken last has been dealt with."""
        with self._room:
            self._taken = []

    def unfinished(self) -> list[T]:
        """What waits, and what was taken and is not `done`."""
        with self._room:
            return [*self._taken, *self._items]

    def __len__(self) -> int:
        return len(self._items)

    def _add(self, item: T) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._some.set()
        if len(self._items) == self._many:
            self._hurry.set()
