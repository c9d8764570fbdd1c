"""What happened when: `events.jsonl`.

Invariants:
- Every line has `time` (unix seconds) and `event` (its name); the rest belongs to the event.
- `program` events name what a trajectory can be doing by `PhaseKind`.
- Lines are only ever added; a resumed run goes on in the same file.
"""

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swe_rl.logger.jsonl import JsonlWriter, read_jsonl


class EventLog:
    """`clock` gives unix seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._writer = JsonlWriter(path)
        self._clock = clock

    def write(self, event: str, **fields: Any) -> None:
        """Raises DiskError."""
        self._writer.append({"time": self._clock(), "event": event, **fields})

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """All events, or those of one name, in the order written; a torn last line is skipped with a warning."""
    return [record for record in read_jsonl(path) if event is None or record.get("event") == event]


class PhaseKind(StrEnum):
    """In the order in which a turn goes through them; boot is before all turns, grade after them."""

    boot = "boot"
    hold = "hold"  # by the router, where it is known apart from the engine's queue
    queue = "queue"
    prefill = "prefill"
    decode = "decode"
    tool = "tool"  # a command was running
    grade = "grade"
