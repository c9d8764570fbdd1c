"""What a fake vLLM server has in memory: which parts sleep, and what an update of weights left there.

Invariants:
- As in 0.26: `/wake_up` with a part's name wakes that part, without a name all of them; a part that is awake stays so.
- What a real server would do with memory that is not there is refused here, and what was asked is noted.
- Shared memory is opened when a transfer is initialised and let go when the update is finished, as `vllm_worker` does.
- A wire stays open from one update to the next, until another one is opened.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from torch import Tensor


WEIGHTS, KV_CACHE = "weights", "kv_cache"
_WIRE_TIMEOUT_S = 120.0
_NEEDS = {
    "/v1/completions": (WEIGHTS, KV_CACHE),
    "/inference/v1/generate": (WEIGHTS, KV_CACHE),
    "/collective_rpc": (WEIGHTS,),
    "/start_weight_update": (WEIGHTS,),
    "/update_weights": (WEIGHTS,),
    "/finish_weight_update": (WEIGHTS,),
}


class FakeSleep:
    """`told(path, query)` is called with every request to sleep or to wake."""

    def __init__(self, able: bool, note: Callable[[str, dict[str, str]], None]) -> None:
        """`able`: the server was started with --enable-sleep-mode."""
        self.asleep: set[str] = set()
        self.misused: list[str] = []  # paths that were asked while what they need was asleep
        self._able, self._told = able, note

    def routes(self) -> dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        return {"/sleep": self._sleep, "/wake_up": self._wake_up}

    def missing(self, path: str) -> str | None:
        """What `path` needs and is asleep; it is noted as misused then."""
        parts = [part for part in _NEEDS.get(path, ()) if part in self.asleep]
        if not parts:
            return None
        self.misused.append(path)
        return parts[0]

    async def _sleep(self, request: web.Request) -> web.StreamResponse:
        self._told(request.path, dict(request.query))
        if not self._able:
            return web.json_response({"error": {"message": "sleep mode is not enabled"}}, status=500)
        self.asleep = {WEIGHTS, KV_CACHE}
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.StreamResponse:
        self._told(request.path, dict(request.query))
        self.asleep -= set(request.query.getall("tags", [WEIGHTS, KV_CACHE]))
        return web.Response()

    async def is_sleeping(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"is_sleeping": bool(self.asleep)})


class FakeReceiver:
    """For threads: over a wire each tensor is waited for. `receives`, `tensor_delay_s`: of the settings."""

    def __init__(self, receives: bool = False, tensor_delay_s: float = 0.0) -> None:
        self._receives, self._tensor_delay_s = receives, tensor_delay_s
        self._wire: Any = None
        self.taken: dict[str, Tensor] = {}  # by name, of the last update
        self.is_open = False
        self._buffers: list[Tensor] = []

    def initialise(self, info: dict[str, Any]) -> None:
        self.finish()
        self.taken = {}
        if self._receives and "master_address" in info:
            self._wire = None  # an earlier one is closed before this one is opened
            self._wire = _joined(info)
        handles = info.get("handles") or {}
        if "cpu" in handles:
            import torch

            from swe_rl.engine.transfer.ipc_handle import open_shared

            self._buffers = [open_shared(handle, torch.device("cpu")) for handle in handles["cpu"]]
            self.is_open = True

    def take(self, info: dict[str, Any]) -> None:
        if self._wire is not None:
            self._take_over_wire(info)
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

    def _take_over_wire(self, info: dict[str, Any]) -> None:
        """Raises RuntimeError where the sender is gone."""
        import torch

        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self._wire.recv([weight], 0, 0).wait()
            self.taken[name] = weight
            time.sleep(self._tensor_delay_s)

    def finish(self) -> None:
        self._buffers, self.is_open = [], False


def _joined(info: dict[str, Any]) -> Any:
    """The other end of the trainer's wire, for a server of one worker."""
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=_WIRE_TIMEOUT_S)
    store = TCPStore(info["master_address"], info["master_port"], info["world_size"], False, limit)
    return ProcessGroupGloo(PrefixStore("weights", store), info["rank_offset"], info["world_size"], limit)
