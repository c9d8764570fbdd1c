"""Adds two back ends for weight transfer to vLLM's workers, beside its own ones.

`gloo` works between processes without GPUs, tensor by tensor. `swe_rl_ipc` goes through memory of the GPU that a worker
shares with a rank of the trainer; vLLM's `ipc` would need ray and pickles. A server is started with copies of this
file, `ipc_handle` and `staged_layers` on its path (`--worker-extension-cls swe_rl_worker.Extension`) and
`--weight-transfer-config '{"backend": "gloo"}'`; it then speaks the same HTTP protocol as one with NCCL.

Invariants:
- vLLM's workers import this file, in their environment: nothing of swe_rl is imported here.
- Over gloo tensors come one by one, in the announced order, types and shapes, from rank 0.
- Every worker finds the memory of its own GPU by the GPU's UUID, whatever number each process gives it.
- When `update_weights` returns, nothing reads the buffer any more: tensors are copied out of it, as vLLM keeps what it
  is given until a layer is complete.
- The trainer's memory is let go of at the end of an update, also of one that failed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from swe_rl_ipc_handle import device_key, open_shared  # type: ignore[import-not-found]
from swe_rl_staged_layers import StagedLayers, copies_past_loaders  # type: ignore[import-not-found]
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

_TIMEOUT_S = 300.0


class Extension:
    """Adds nothing to a worker: naming it has this module imported."""


class _Receiver(WeightTransferEngine):  # type: ignore[misc]
    """One worker's end. vLLM takes the tensors layer by layer; `_staged` does where vLLM would lose some."""

    _staged: StagedLayers | None = None

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        # After an update that failed the layers still have the memory that was made for it, and so it is filled again.
        if self._staged is None and copies_past_loaders(self.model):
            self._staged = StagedLayers(self.model)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._staged is not None:
            self._staged.finish()
            self._staged = None
        finalize_layerwise_reload(self.model, self.model_config)

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise RuntimeError("the trainer has an end of its own")


@dataclass(kw_only=True)
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The place of a worker. `world_size` has the sender and all workers of all servers; a server's begin at
    `rank_offset`.
    """

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooEngine(_Receiver):
    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: Any = None
    _kernels: dict[Any, Any] = {}

    def start_weight_update(self) -> None:
        super().start_weight_update()
        # vLLM's CPU build packs the weights of experts when it makes their kernel, and with a kernel there it keeps new
        # weights as they came: a mixture would compute nonsense after its first update (seen with 0.32).
        methods: set[Any] = {getattr(layer, "quant_method", None) for layer in self.model.modules()}
        made = {method: method.moe_kernel for method in methods if getattr(method, "moe_kernel", None)}
        # Those of an update that failed are still kept.
        self._kernels = self._kernels | made
        for method in self._kernels:
            method.moe_kernel = None

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        for method, kernel in self._kernels.items():
            # No new weights came for these experts.
            if method.moe_kernel is None:
                method.moe_kernel = kernel
        self._kernels = {}

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        # It may be of an earlier wire.
        self.shutdown()
        rank = self.parallel_config.data_parallel_index * self.parallel_config.world_size + self.parallel_config.rank
        limit = timedelta(seconds=_TIMEOUT_S)
        store = TCPStore(init_info.master_address, init_info.master_port, init_info.world_size, False, limit)
        self._group = ProcessGroupGloo(
            PrefixStore("weights", store), init_info.rank_offset + rank, init_info.world_size, limit
        )

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class would wait for an accelerator, too.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("no weight transfer was initialised")
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.recv([weight], 0, 0).wait()
            self.model.load_weights([(name, weight)])

    def shutdown(self) -> None:
        self._group = None


@dataclass(kw_only=True)
class IpcInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The buffers. `handles` has those of each GPU, by its UUID."""

    handles: dict[str, list[dict[str, Any]]]


@dataclass
class IpcUpdateInfo(GlooUpdateInfo):
    """One bucket of whole tensors. `offsets` are bytes in buffer number `buffer`."""

    buffer: int
    offsets: list[int]


class IpcEngine(_Receiver):
    init_info_cls = IpcInitInfo
    update_info_cls = IpcUpdateInfo
    _buffers: tuple[torch.Tensor, ...] = ()

    def init_transfer_engine(self, init_info: IpcInitInfo) -> None:
        # It may be of an update that failed.
        self.shutdown()
        key = device_key(self.device)
        if key not in init_info.handles:
            there = ", ".join(sorted(init_info.handles)) or "none"
            raise RuntimeError(f"no rank of the trainer shares memory of this worker's GPU {key}, but of {there}")
        self._buffers = tuple(open_shared(handle, self.device) for handle in init_info.handles[key])

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
        self.model.load_weights(_bucket_tensors(self._buffers[update_info.buffer], update_info))

    def finish_weight_update(self) -> None:
        self.shutdown()
        super().finish_weight_update()
        self._settle()
        if self.device.type == "cuda":
            # The copies' memory goes back: the cache may want it next.
            torch.cuda.empty_cache()

    def shutdown(self) -> None:
        self._buffers = ()

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _bucket_tensors(buffer: torch.Tensor, info: IpcUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype_name, shape, offset in zip(info.names, info.dtype_names, info.shapes, info.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        size = torch.Size(shape).numel() * dtype.itemsize
        yield name, buffer[offset : offset + size].view(dtype).view(shape).clone()


WeightTransferEngineFactory.register_engine("gloo", GlooEngine)
WeightTransferEngineFactory.register_engine("swe_rl_ipc", IpcEngine)
