"""The module has signs of life: a rank says that it gets on, and its driver knows how long each was silent.

Invariants:
- The thread that works gives the sign, at a place that it reaches by working: a rank that hangs gives none.
- Signs are rare: a tenth of the patience is between two of them, 5 s at most. So a rank whose signs its driver does not
  read loses no time, and a rank far away costs few round trips.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

# It is called wherever work has got on.
Beat = Callable[[], None]
# This is the kind of an answer that is only a sign.
ALIVE = "alive"

# A tenth of the patience lets nine signs get lost before the driver gives a rank up; 5 s bound it where the patience is
# an hour.
_PART = 10
_MOST_S = 5.0
Item = TypeVar("Item")


def no_beat() -> None:
    """Does nothing: it is the beat of those whom nobody waits for."""


class Pulse:
    """A `Beat` that now and then calls `say`."""

    def __init__(self, say: Callable[[], None], patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Keeps `say`. `patience_s` is the silence in seconds after which the driver gives this rank up."""
        self._say = say
        self._clock = clock
        self._every_s = min(_MOST_S, patience_s / _PART)
        self._next_s = float("-inf")

    def __call__(self) -> None:
        now_s = self._clock()
        if now_s >= self._next_s:
            self.at_once()

    def at_once(self) -> None:
        """Gives a sign however short the time since the last one.

        A request has come, and ranks that never read theirs differ.
        """
        self._next_s = self._clock() + self._every_s
        self._say()


def with_beats(items: Iterable[Item], beat: Beat) -> Iterator[Item]:
    """Yields the items, and gives a sign before each."""
    for item in items:
        beat()
        yield item


class BeatingWeights(Mapping[str, "Tensor"]):
    """The weights of another mapping. Each that is read gives a sign of life."""

    def __init__(self, weights: "Mapping[str, Tensor]", beat: Beat) -> None:
        self._weights = weights
        self._beat = beat

    def __getitem__(self, name: str) -> "Tensor":
        self._beat()
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class Silence:
    """Tells how long each of some ranks has said nothing."""

    def __init__(self, ranks: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_s = dict.fromkeys(ranks, clock())

    def heard(self, rank: int) -> None:
        self._heard_s[rank] = self._clock()

    def over(self, rank: int) -> None:
        """Forgets a rank that has answered and has nothing more to say."""
        del self._heard_s[rank]

    def longest(self) -> tuple[int, float]:
        """Returns the rank that has been silent longest, and for how many seconds."""
        rank = min(self._heard_s, key=lambda rank: self._heard_s[rank])
        return rank, self._clock() - self._heard_s[rank]
