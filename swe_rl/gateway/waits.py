"""For how long the calls of a session waited: held by the router, queued in an engine, with an engine that then failed,
or backing off after an answer that said to come again.

Invariants:
- What overlaps counts once, so the sum is never more than the time that passed.
- A wait that is under way counts already.
"""

import time
from collections.abc import Callable

BACK_OFF_S = 60.0  # the longest that a client is thought to wait before it asks again


class Waits:
    """Of one session. Times are of `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spans: list[tuple[float, float]] = []  # apart from each other, in order
        self._open: dict[int, float] = {}
        self._number = 0
        self._refused_s: float | None = None

    def begin(self) -> Callable[[], None]:
        """A call waits from now on; the result ends that, and may be called again."""
        self._number += 1
        number = self._number
        self._open[number] = self._clock()

        def end() -> None:
            began_s = self._open.pop(number, None)
            if began_s is not None:
                self.add(began_s, self._clock())

        return end

    def refused(self) -> None:
        """A call was answered that it should come again; its client waits before it does."""
        if self._refused_s is None:
            self._refused_s = self._clock()

    def asked(self) -> None:
        """A call came: nobody backs off any more."""
        refused_s, self._refused_s = self._refused_s, None
        if refused_s is not None:
            self.add(refused_s, min(self._clock(), refused_s + BACK_OFF_S))

    def add(self, began_s: float, ended_s: float) -> None:
        if ended_s > began_s:
            self._spans = _united(self._spans, began_s, ended_s)

    def total_s(self) -> float:
        """Seconds so far."""
        spans, now_s = self._spans, self._clock()
        if self._open:
            spans = _united(spans, min(self._open.values()), now_s)
        if self._refused_s is not None:
            spans = _united(spans, self._refused_s, min(now_s, self._refused_s + BACK_OFF_S))
        return sum(ended_s - began_s for began_s, ended_s in spans)


def _united(spans: list[tuple[float, float]], began_s: float, ended_s: float) -> list[tuple[float, float]]:
    apart = [span for span in spans if span[1] < began_s or span[0] > ended_s]
    touched = [span for span in spans if not (span[1] < began_s or span[0] > ended_s)]
    whole = (min([began_s, *(span[0] for span in touched)]), max([ended_s, *(span[1] for span in touched)]))
    return sorted([*apart, whole])
