"""Signs of life: a rank says that it gets on, and its driver knows how long each rank has been silent.

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

Beat = Callable[[], None]  # called wherever work has got on
ALIVE = "alive"  # the kind of an answer that is only a sign

_PART, _MOST_S = 10, 5.0
Item = TypeVar("Item")


def no_beat() -> None:
    """For those whom nobody waits for."""


class Pulse:
    """A `Beat` that says so by `say`, now and then."""

    def __init__(self, say: Callable[[], None], patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`patience_s`: after how long a silence the driver gives this rank up."""
        self._say, self._clock = say, clock
        self._every_s = min(_MOST_S, patience_s / _PART)
        self._next_s = float("-inf")

    def __call__(self) -> None:
        now_s = self._clock()
        if now_s >= self._next_s:
            self.at_once()

    def at_once(self) -> None:
        """However short the time since the last one: a request has come, and ranks that never read theirs differ."""
        self._next_s = self._clock() + self._every_s
        self._say()


def beating(items: Iterable[Item], beat: Beat) -> Iterator[Item]:
    """The same, with a sign before each."""
    for item in items:
        beat()
        yield item


class BeatingWeights(Mapping[str, "Tensor"]):
    """The same weights, with a sign for each that is read."""

    def __init__(self, weights: "Mapping[str, Tensor]", beat: Beat) -> None:
        self._weights, self._beat = weights, beat

    def __getitem__(self, name: str) -> "Tensor":
        self._beat()
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class Silence:
    """How long each of some ranks has said nothing."""

    def __init__(self, ranks: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_s = dict.fromkeys(ranks, clock())

    def heard(self, rank: int) -> None:
        self._heard_s[rank] = self._clock()

    def over(self, rank: int) -> None:
        """It has answered, and has nothing more to say."""
        del self._heard_s[rank]

    def longest(self) -> tuple[int, float]:
        """The rank that has been silent longest, and for how many seconds."""
        rank = min(self._heard_s, key=lambda rank: self._heard_s[rank])
        return rank, self._clock() - self._heard_s[rank]
