"""vLLM's weight transfer through memory of the GPU that a worker shares with a rank of the trainer.

A back end `swe_rl_ipc` for vLLM's workers, beside its own ones; vLLM's `ipc` would need ray and pickles. A server is
started with copies of this file and of `ipc_handle` on its path (`--worker-extension-cls swe_rl_ipc.Extension`) and
`--weight-transfer-config '{"backend": "swe_rl_ipc"}'`; it then speaks the same HTTP protocol as one with NCCL.

Invariants:
- Imported by vLLM's workers, in their environment: nothing of swe_rl is imported here.
- Every worker finds the memory of its own GPU by the GPU's UUID, whatever number each process gives it.
- When `update_weights` returns, nothing reads the buffer any more: tensors are copied out of it, as vLLM keeps what it
  is given until a layer is complete.
- The trainer's memory is let go of at the end of an update, also of one that failed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from swe_rl_ipc_handle import device_key, open_shared  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

NAME = "swe_rl_ipc"


class Extension:
    """Adds nothing to a worker: naming it has this module imported."""


@dataclass(kw_only=True)
class IpcInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """`handles`: by a GPU's UUID those of its buffers."""

    handles: dict[str, list[dict[str, Any]]]


@dataclass
class IpcUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket of whole tensors; `offsets` are bytes in buffer number `buffer`."""

    buffer: int
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    offsets: list[int]


class IpcEngine(WeightTransferEngine):  # type: ignore[misc]
    """One worker's end."""

    init_info_cls = IpcInitInfo
    update_info_cls = IpcUpdateInfo
    _buffers: tuple[torch.Tensor, ...] = ()

    def init_transfer_engine(self, init_info: IpcInitInfo) -> None:
        self.shutdown()  # of an update that failed
        own = device_key(self.device)
        if own not in init_info.handles:
            there = ", ".join(sorted(init_info.handles)) or "none"
            raise RuntimeError(f"no rank of the trainer shares memory of this worker's GPU {own}, but of {there}")
        self._buffers = tuple(open_shared(handle, self.device) for handle in init_info.handles[own])

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self.receive_weights(self.parse_update_info(update_info))
            self._settle()
        except BaseException:
            self.shutdown()
            raise

    def receive_weights(self, update_info: IpcUpdateInfo) -> None:
        if not self._buffers:
            raise RuntimeError("no weight transfer was initialised")
        self.model.load_weights(_tensors(self._buffers[update_info.buffer], update_info))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self.shutdown()
        finalize_layerwise_reload(self.model, self.model_config)
        self._settle()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # of the copies: the cache may want its memory next

    def shutdown(self) -> None:
        self._buffers = ()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise RuntimeError("the trainer has an end of its own")

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _tensors(buffer: torch.Tensor, info: IpcUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype_name, shape, offset in zip(info.names, info.dtype_names, info.shapes, info.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        size = torch.Size(shape).numel() * dtype.itemsize
        yield name, buffer[offset : offset + size].view(dtype).view(shape).clone()


WeightTransferEngineFactory.register_engine(NAME, IpcEngine)
