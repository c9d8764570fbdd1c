"""What a trainer must offer to hand weights to servers on its own GPUs: buffers there that both sides see.

Invariants:
- Nothing of torch is needed here: handles travel as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from swe_rl.engine.transfer.buckets import Bucket
from swe_rl.engine.transfer.wire import Sent

Handle = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Staging:
    """`handles`: of the buffers on each GPU, by its UUID; `problem`: why there are none."""

    buckets: Sequence[Bucket] = ()
    handles: Mapping[str, Sequence[Handle]] | None = None
    problem: str | None = None


@runtime_checkable
class StagesWeights(Protocol):
    """All of it blocks its thread, and raises TrainerError."""

    def open_staging(self, twice: Mapping[str, str]) -> Staging:
        """Buffers on every rank's GPU. `twice`: second names of some tensors, with the first ones."""
        ...

    def stage(self, number: int) -> Sent:
        """Bucket `number` is in its buffer of every GPU when this returns; they come in their order."""
        ...

    def close_staging(self) -> None:
        """The buffers are gone; nobody may have one open. Also where none were made."""
        ...
