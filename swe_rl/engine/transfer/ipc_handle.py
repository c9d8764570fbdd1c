"""Shares memory between two processes of a host: one makes it and tells a handle, the other opens it by that.

A copy of this file goes beside `vllm_worker` to the servers: nothing of swe_rl or vLLM is imported here.

Invariants:
- A handle is JSON, and opening one runs no code that came with it.
- On a GPU it is memory of torch's allocator, opened by CUDA IPC in a process that has the same GPU, under any number;
  elsewhere it is memory of the host without a file, opened by the number that it has in its maker's process.
- Memory lives as long as its maker keeps it, whatever becomes of those who opened it; they let go first. However the
  maker ends, nothing is left behind.
"""

import base64
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Handle = dict[str, Any]
# The descriptors of this process, by the paths that others open.
_descriptors: dict[str, int] = {}


def device_key(device: torch.device) -> str:
    """Returns a name that is the same in all processes: a GPU's UUID without `GPU-` before it; `cpu` for the host."""
    if device.type != "cuda":
        return "cpu"
    text = str(torch.cuda.get_device_properties(device).uuid)
    return text.removeprefix("GPU-").removeprefix("MIG-").lower()


def make_shared(size_bytes: int, device: torch.device) -> tuple[Tensor, Handle]:
    """Returns uint8 [size_bytes], and how others open it. Raises RuntimeError with the cause where it
    cannot be shared.
    """
    size_bytes = max(1, size_bytes)
    if device.type != "cuda":
        descriptor = os.memfd_create("swe_rl")
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        _descriptors[path] = descriptor
        shared = torch.from_file(path, shared=True, size=size_bytes, dtype=torch.uint8)
        return shared, {"file": path, "size": size_bytes}
    _require_shareable()
    tensor = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    storage: Any = tensor.untyped_storage()
    _, memory, size, offset, counter, counter_offset, event, waits = storage._share_cuda_()
    # torch counts whoever opens a handle, and never frees memory of a process that died with one: not counted here.
    torch.UntypedStorage._release_ipc_counter(counter, counter_offset, device=device)
    handle = {"size": size, "offset": offset, "counter_offset": counter_offset, "waits": waits}
    return tensor, handle | {
        "memory": _encode_text(memory),
        "counter": _encode_text(counter),
        "event": _encode_text(event),
    }


def open_shared(handle: Handle, device: torch.device) -> Tensor:
    """Returns the memory of `make_shared`, uint8, until the result is dropped. Raises RuntimeError."""
    if "file" in handle:
        # torch would make a new file.
        if not Path(handle["file"]).exists():
            raise RuntimeError(f"the shared memory {handle['file']} is gone")
        return torch.from_file(handle["file"], shared=True, size=handle["size"], dtype=torch.uint8)
    if device.index is None:
        index = torch.cuda.current_device()
    else:
        index = device.index
    counter = _decode_bytes(handle["counter"]), handle["counter_offset"]
    place = _decode_bytes(handle["memory"]), handle["size"], handle["offset"]
    opened: Any = torch.UntypedStorage._new_shared_cuda(
        index, *place, *counter, _decode_bytes(handle["event"]), handle["waits"]
    )
    return torch.empty(0, dtype=torch.uint8, device=torch.device("cuda", index)).set_(opened)


def forget_shared(handle: Handle) -> None:
    """Says that nobody opens it any more. On a GPU it ends with its tensor."""
    descriptor = _descriptors.pop(handle.get("file", ""), None)
    if descriptor is not None:
        os.close(descriptor)


def _require_shareable() -> None:
    """Raises RuntimeError where the allocator's memory cannot be shared."""
    settings = ",".join(os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if torch.cuda.get_allocator_backend() != "native" or "expandable_segments:true" in settings.lower():
        raise RuntimeError(
            f"no other process can open memory that is allocated with PYTORCH_CUDA_ALLOC_CONF={settings.strip(',')}: "
            "start without expandable_segments and cudaMallocAsync, or take trainer.weight_sync=disk"
        )


def _encode_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
