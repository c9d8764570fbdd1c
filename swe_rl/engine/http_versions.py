"""Which weights a server held when.

Invariants:
- Versions are kept with the time from which requests were scheduled with them, in order.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

_KEPT = 64


@dataclass(slots=True)
class WeightHistory:
    """Starts with version 0, the weights that the server was started with."""

    entries: list[tuple[float, int]] = field(default_factory=lambda: [(float("-inf"), 0)])

    @property
    def latest(self) -> int:
        return self.entries[-1][1]

    def add(self, since_s: float, version: int) -> None:
        self.entries.append((since_s, version))
        del self.entries[:-_KEPT]

    def at(self, time_s: float) -> int:
        """The version that a request scheduled at `time_s` began with."""
        index = bisect_right(self.entries, time_s, key=lambda entry: entry[0]) - 1
        return self.entries[max(index, 0)][1]
