"""Programs whose requests are held, in the order in which they are let go.

Invariants:
- A program waits in one queue at most.
- Within a queue who had fewest turns goes first, but a turn counts less the longer its program has waited: the key
  `turns + rate * arrival` orders two programs the same way at all times, so a heap keeps it, and no program is
  overtaken by ones that came `turns / rate` later.
"""

import heapq
from collections.abc import Iterator

_SLACK = 64  # stale entries that are not worth a sweep


class AgeingQueue:
    """Logarithmic time an operation."""

    def __init__(self, ageing_turns_per_s: float) -> None:
        self._rate = ageing_turns_per_s
        self._heap: list[tuple[float, int, str]] = []
        self._number_of: dict[str, int] = {}
        self._pushed = 0
        self.refused: str | None = None  # the head for which there was no room, for the queue's owner

    def push(self, program_id: str, turns: float, arrived_s: float) -> None:
        """A program that is in already moves to its new place."""
        self._pushed += 1
        self._number_of[program_id] = self._pushed
        heapq.heappush(self._heap, (turns + self._rate * arrived_s, self._pushed, program_id))
        if len(self._heap) > 2 * len(self._number_of) + _SLACK:
            self._heap = [entry for entry in self._heap if self._number_of.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, program_id: str) -> None:
        self._number_of.pop(program_id, None)

    def head(self) -> str | None:
        while self._heap:
            _, number, program_id = self._heap[0]
            if self._number_of.get(program_id) == number:
                return program_id
            heapq.heappop(self._heap)
        return None

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._number_of

    def __len__(self) -> int:
        return len(self._number_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._number_of)
