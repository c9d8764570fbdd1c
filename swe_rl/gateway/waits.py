"""This module counts how long the calls of a session waited for what their agent did not cause.

Invariants:
- Waits that overlap count once, so the sum is never more than the time that passed.
- A wait that is under way counts already.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable

# A client waits at most so long before it asks again, as far as is known. A longer silence is its own.
BACK_OFF_S = 60.0


class Waits:
    """Sums the waits of one session. Times are seconds on `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The spans are in order and do not touch each other.
        self._spans: list[tuple[float, float]] = []
        # This is the sum of the spans.
        self._spans_s = 0.0
        self._open: dict[int, float] = {}
        self._number = 0
        self._refused_s: float | None = None

    def begin(self) -> Callable[[], None]:
        """Begins a wait of one call. Returns the function that ends it, which may be called again."""
        self._number += 1
        number = self._number
        self._open[number] = self._clock()

        def end() -> None:
            began_s = self._open.pop(number, None)
            if began_s is not None:
                self.add(began_s, self._clock())

        return end

    def refused(self) -> None:
        """Notes that a call was told to come again: its client waits before it does."""
        if self._refused_s is None:
            self._refused_s = self._clock()

    def asked(self) -> None:
        """Notes that a call came, so that its client does not back off any more."""
        refused_s = self._refused_s
        self._refused_s = None
        if refused_s is not None:
            self.add(refused_s, min(self._clock(), refused_s + BACK_OFF_S))

    def add(self, began_s: float, ended_s: float) -> None:
        if ended_s > began_s:
            self._spans_s += _unite_span(self._spans, began_s, ended_s)

    def total_s(self) -> float:
        """Returns the seconds waited so far."""
        now_s = self._clock()
        under_way = []
        if self._open:
            under_way.append((min(self._open.values()), now_s))
        if self._refused_s is not None:
            under_way.append((self._refused_s, min(now_s, self._refused_s + BACK_OFF_S)))
        if not under_way:
            return self._spans_s
        latest = self._spans[bisect_left(self._spans, min(under_way)[0], key=_span_end) :]
        return self._spans_s + sum(_unite_span(latest, *span) for span in under_way)


def _unite_span(spans: list[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """Puts a span into `spans` and returns by how many seconds they became more. It looks only at spans that the new
    one touches."""
    first = bisect_left(spans, began_s, key=_span_end)
    last = bisect_right(spans, ended_s, lo=first, key=_span_begin)
    touched = spans[first:last]
    if touched:
        began_s = min(began_s, touched[0][0])
        ended_s = max(ended_s, touched[-1][1])
    spans[first:last] = [(began_s, ended_s)]
    return ended_s - began_s - sum(end_s - begin_s for begin_s, end_s in touched)


def _span_begin(span: tuple[float, float]) -> float:
    return span[0]


def _span_end(span: tuple[float, float]) -> float:
    return span[1]
