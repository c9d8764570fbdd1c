"""New weights for all engines of a run, side by side: which way they take, and how the way through each engine goes.

Invariants:
- Every engine is given them at the same time, and has taken them or failed when `update_engines` ends.
- An engine that will not serve again needs none, as long as another one does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Engine, EngineError, EngineState, WeightSyncError
from swe_rl.engine.server.weights import EMBEDDING, HEAD
from swe_rl.engine.transfer.direct import Transfer
from swe_rl.engine.transfer.protocol import GLOO, IPC, SendsWeights, transfer_kind
from swe_rl.engine.transfer.staged import StagedTransfer

if TYPE_CHECKING:
    import torch


def make_transfer(config: Config, engines: Sequence[Engine], sender: SendsWeights) -> Transfer | None:
    """For engines that take weights from the trainer's memory at once; None where they take them one by one."""
    kind = transfer_kind(config)
    if kind is None:
        return None
    # Without a GPU the servers of vllm_engines have an output layer of their own.
    untied = config.model.tie_word_embeddings and kind == GLOO and config.engine.kind is EngineKind.vllm
    twice = {HEAD: EMBEDDING} if untied else {}
    if kind == IPC:
        made: Transfer = StagedTransfer(engines, sender, twice)
    else:
        made = Transfer(engines, sender, kind, twice)
    if config.trainer.max_staleness_steps == 0:  # else the trainer's weights may be newer than those that are restored
        for engine in engines:
            engine.restore = made.restore
    return made


async def update_engines(engines: Sequence[Engine], weights: "Mapping[str, torch.Tensor]", version: int) -> None:
    """`weights`: names as in the model's `state_dict`. Raises WeightSyncError; DiskError and the like as they are."""
    wanting = [engine for engine in engines if engine.state is not EngineState.gone] or list(engines)
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
