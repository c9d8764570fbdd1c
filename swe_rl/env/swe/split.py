"""A split and the slice of it: `train`, `train[1000:]`, `test[:400]`.

Invariants:
- Rows count from 0 in the data set's own order; a slice never reorders.
"""

import re
from dataclasses import dataclass

from swe_rl.env.instance import InstanceError

_SPLIT = re.compile(r"([\w.-]+)(?:\[(\d*):(\d*)\])?")


@dataclass(frozen=True, slots=True)
class Split:
    name: str
    start: int = 0
    stop: int | None = None  # None: to the end

    @classmethod
    def parse(cls, text: str, key: str = "env.split") -> "Split":
        """Raises InstanceError for anything but NAME or NAME[FROM:TO]."""
        match = _SPLIT.fullmatch(text)
        if not match:
            raise InstanceError(f"{key}={text} is not a split; write NAME or NAME[FROM:TO], as train[1000:]")
        name, start, stop = match.groups()
        return cls(name, int(start or 0), int(stop) if stop else None)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)
