"""The end of a weight transfer in a fake vLLM server: what it was told of, and for shared memory what it found there.

Invariants:
- Shared memory is opened when a transfer is initialised and let go when the update is finished, as `vllm_ipc` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class FakeReceiver:
    def __init__(self) -> None:
        self.taken: dict[str, Tensor] = {}  # by name, of the last update
        self.is_open = False
        self._buffers: list[Tensor] = []

    def initialise(self, info: dict[str, Any]) -> None:
        self.finish()
        self.taken = {}
        handles = info.get("handles") or {}
        if "cpu" in handles:
            import torch

            from swe_rl.engine.transfer.ipc_handle import open_shared

            self._buffers = [open_shared(one, torch.device("cpu")) for one in handles["cpu"]]
            self.is_open = True

    def take(self, info: dict[str, Any]) -> None:
        if not self._buffers:
            return
        import torch

        buffer = self._buffers[info["buffer"]]
        for name, dtype, shape, offset in zip(
            info["names"], info["dtype_names"], info["shapes"], info["offsets"], strict=True
        ):
            kind: torch.dtype = getattr(torch, dtype)
            size = torch.Size(shape).numel() * kind.itemsize
            self.taken[name] = buffer[offset : offset + size].view(kind).view(shape).clone()

    def finish(self) -> None:
        self._buffers, self.is_open = [], False
