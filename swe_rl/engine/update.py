"""Asks all engines of a run for what a step needs: to leave the GPUs to the trainer, and to take new weights.

Invariants:
- Every engine is given new weights at the same time, and has taken them or failed when `update_engines` ends.
- An engine that will not serve again needs no weights, as long as another one does.
- Outside of `to_trainer` ... `to_engines` the GPUs are the engines'; a run begins so, with engines that are awake.
- After `to_trainer` no server has memory on a GPU beyond what sleeping leaves: it sleeps, or its process has ended.
- After `to_engines` every engine that will serve again has a running server, which serves with the next update of
  weights and not before: that update wakes it, and nothing else does.
- Engines with no memory on a GPU go on as they are.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from swe_rl.config.choices import EngineKind, RolloutMode
from swe_rl.config.schema import Config
from swe_rl.engine.engine import Engine, EngineError, EngineState, WeightSyncError, worth_asking
from swe_rl.engine.server.weights import EMBEDDING, HEAD
from swe_rl.engine.transfer.direct import Reading, Transfer
from swe_rl.engine.transfer.sent_weights import SendsWeights
from swe_rl.engine.transfer.staged import StagedTransfer
from swe_rl.engine.transfer.wire import WireTransfer
from swe_rl.facts.sizes import shares_gpus
from swe_rl.facts.weight_sync import GLOO, IPC, transfer_kind

if TYPE_CHECKING:
    import torch


def make_transfer(
    config: Config, engines: Sequence[Engine], sender: SendsWeights, reading: Reading | None = None
) -> Transfer | None:
    """Returns the transfer for engines that take weights from the trainer's memory at once; None if one by one.

    `reading` is how to read the trainer's weights while it may be learning; with `rollout.mode=stream`.
    """
    kind = transfer_kind(config)
    if kind is None:
        return None
    # Without a GPU the servers of vllm_engines have an output layer of their own.
    untied = config.model.tie_word_embeddings and kind == GLOO and config.engine.kind is EngineKind.vllm
    if untied:
        twice = {HEAD: EMBEDDING}
    else:
        twice = {}
    if kind == IPC:
        made: Transfer = StagedTransfer(engines, sender, twice)
    else:
        made = WireTransfer(engines, sender, kind, twice)
    streams = config.rollout.mode is RolloutMode.stream
    # An engine may be newer than others: each token has its version.
    if streams:
        made.reading = reading
    # Otherwise a step's tokens would be of two versions.
    if streams or config.trainer.max_staleness_steps == 0:
        for engine in engines:
            engine.restore = made.restore
    return made


async def update_engines(engines: Sequence[Engine], weights: "Mapping[str, torch.Tensor]", version: int) -> None:
    """Gives engines `weights` (names as in the model's `state_dict`). Raises WeightSyncError, DiskError
    and the like.
    """
    wanting = worth_asking(engines)
    ends = await asyncio.gather(
        *(engine.update_weights(weights, version) for engine in wanting), return_exceptions=True
    )
    failures: dict[str, EngineError] = {}
    for engine, end in zip(wanting, ends, strict=True):
        if isinstance(end, EngineError):
            failures[engine.name] = end
        elif isinstance(end, BaseException):
            raise end
    gone = {engine.name for engine in wanting if engine.state is EngineState.gone}
    if failures and not (len(failures) < len(wanting) and failures.keys() <= gone):
        raise WeightSyncError.of(failures, len(engines), version) from next(iter(failures.values()))


class EngineTurns:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._sleep_s: float | None = None

    async def to_trainer(self) -> None:
        """Makes the engines leave their GPUs. Nothing may be in flight; what comes now waits. Raises EngineError."""
        began_s = time.monotonic()
        await _ask_each(self._engines, lambda engine: engine.sleep())
        self._sleep_s = time.monotonic() - began_s

    async def to_engines(self) -> None:
        """Gives the GPUs back to the engines; new weights follow. Raises EngineError."""
        if self._sleep_s is not None:
            await _ask_each(self._engines, lambda engine: engine.may_wake())

    def times(self) -> dict[str, float]:
        """Returns seconds of the last turn, each the slowest engine's: `sleep_s`, `wake_s`; nothing before the first
        one.
        """
        if self._sleep_s is None:
            return {}
        return {"sleep_s": self._sleep_s, "wake_s": max((engine.wake_s for engine in self._engines), default=0.0)}


def make_turns(config: Config, engines: Sequence[Engine]) -> EngineTurns:
    return EngineTurns(engines if shares_gpus(config) else [])


async def _ask_each(engines: Sequence[Engine], step: Callable[[Engine], Awaitable[None]]) -> None:
    """Asks all at the same time; whoever fails for good is left out, as the update of weights does."""
    ends = await asyncio.gather(*(step(engine) for engine in engines), return_exceptions=True)
    for engine, end in zip(engines, ends, strict=True):
        left_out = isinstance(end, EngineError) and engine.state is EngineState.gone
        if isinstance(end, BaseException) and not left_out:
            raise end
