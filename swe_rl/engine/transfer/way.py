"""Which way new weights take to all engines at once, if they take one of those that leave out the disk."""

from collections.abc import Sequence

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Engine
from swe_rl.engine.server.weights import EMBEDDING, HEAD
from swe_rl.engine.transfer.direct import Transfer
from swe_rl.engine.transfer.staged import StagedTransfer
from swe_rl.engine.transfer.staging import StagesWeights
from swe_rl.engine.transfer.wire import GLOO, IPC, SendsWeights, transfer_kind


def make_transfer(config: Config, engines: Sequence[Engine], sender: SendsWeights) -> Transfer | None:
    """None where weights go another way."""
    kind = transfer_kind(config)
    if kind is None:
        return None
    # Without a GPU the servers of vllm_engines have an output layer of their own.
    untied = config.model.tie_word_embeddings and kind == GLOO and config.engine.kind is EngineKind.vllm
    twice = {HEAD: EMBEDDING} if untied else {}
    if kind == IPC:
        assert isinstance(sender, StagesWeights)  # ranks: the rules want a colocated layout with trainer GPUs
        made: Transfer = StagedTransfer(engines, sender, sender, twice)
    else:
        made = Transfer(engines, sender, kind, twice)
    for engine in engines:
        if hasattr(engine, "restore") and config.trainer.max_staleness_steps == 0:
            engine.restore = made.restore  # with training beside sampling, the trainer's weights may be newer by then
    return made
