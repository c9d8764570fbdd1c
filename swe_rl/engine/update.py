"""New weights for all engines of a run, side by side.

Invariants:
- Every engine is given them at the same time, and has taken them or failed when `update_engines` ends.
- An engine that will not serve again needs none, as long as another one does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swe_rl.engine.protocol import Engine, EngineError

if TYPE_CHECKING:
    import torch


class WeightSyncError(EngineError):
    """Some engines did not take new weights; `failures` says why, by engine."""

    def __init__(self, message: str, failures: Mapping[str, EngineError]) -> None:
        super().__init__(message)
        self.failures = dict(failures)


async def update_engines(engines: Sequence[Engine], weights: "Mapping[str, torch.Tensor]", version: int) -> None:
    """`weights`: names as in the model's `state_dict`. Raises WeightSyncError; DiskError and the like as they are."""
    wanting = [engine for engine in engines if not is_gone(engine)] or list(engines)
    ends = await asyncio.gather(
        *(engine.update_weights(weights, version) for engine in wanting), return_exceptions=True
    )
    failures: dict[str, EngineError] = {}
    for engine, end in zip(wanting, ends, strict=True):
        if isinstance(end, EngineError):
            failures[engine.name] = end
        elif isinstance(end, BaseException):
            raise end
    gone = {engine.name for engine in wanting if is_gone(engine)}
    if failures and not (len(failures) < len(wanting) and failures.keys() <= gone):
        raise sync_error(failures, len(engines), version) from next(iter(failures.values()))


def is_gone(engine: object) -> bool:
    """It will not serve again."""
    return bool(getattr(engine, "failed", False))


def sync_error(failures: Mapping[str, EngineError], count: int, version: int, instead: str = "") -> WeightSyncError:
    """What several engines say alike is said once. `instead`: another way, as a sentence."""
    names: dict[str, list[str]] = {}
    for name, failure in failures.items():
        names.setdefault(str(failure), []).append(name)
    told = "; ".join(f"{', '.join(who)}: {why}" for why, who in names.items())
    return WeightSyncError(
        f"The weights of step {version} did not reach {len(failures)} of {count} engines ({told}). The run stops, as "
        f"they would sample with older ones; trainer.resume=auto goes on from the newest checkpoint.{instead}",
        failures,
    )
