"""vLLM's weight transfer between processes without GPUs: a back end `gloo` beside its own `nccl`, for its workers.

A server is started with a copy of this file on its path (`--worker-extension-cls swe_rl_gloo.Extension`) and
`--weight-transfer-config '{"backend": "gloo"}'`; it then speaks the same HTTP protocol as one with NCCL.

Invariants:
- Imported by vLLM's workers, in their environment: nothing of swe_rl is imported here.
- Tensors come one by one, in the announced order, types and shapes, from rank 0.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

NAME = "gloo"
_TIMEOUT_S = 300.0


class Extension:
    """Adds nothing to a worker: naming it has this module imported."""


@dataclass(kw_only=True)
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """`world_size`: the sender and all workers of all servers; a server's own begin at `rank_offset`."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooEngine(WeightTransferEngine):  # type: ignore[misc]
    """One worker's end."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: Any = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        self.shutdown()  # of an earlier wire
        own = self.parallel_config.data_parallel_index * self.parallel_config.world_size + self.parallel_config.rank
        limit = timedelta(seconds=_TIMEOUT_S)
        store = TCPStore(init_info.master_address, init_info.master_port, init_info.world_size, False, limit)
        self._group = ProcessGroupGloo(
            PrefixStore("weights", store), init_info.rank_offset + own, init_info.world_size, limit
        )

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # the base class waits for an accelerator, too

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("no weight transfer was initialised")
        options = BroadcastOptions()
        options.rootRank = 0
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast([weight], options).wait()
            self.model.load_weights([(name, weight)])

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._group = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise RuntimeError("the trainer has an end of its own")


WeightTransferEngineFactory.register_engine(NAME, GlooEngine)
