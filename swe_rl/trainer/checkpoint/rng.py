"""The states of all random number generators as plain data.

Invariants:
- JSON only: integers, strings and lists; nothing that has to be unpickled.
- After `restore_rng(capture_rng())` every generator goes on as if nothing had happened.
"""

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture_rng(*, gpus: bool = True) -> dict[str, Any]:
    """States of Python's, NumPy's (the global one), torch's and, where there are GPUs, CUDA's generators.

    `gpus` False leaves CUDA's out: reading them takes memory on every GPU that this process sees.
    """
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state()),
        "cuda": [_encode(state) for state in _cuda_states()] if gpus else [],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Sets them all; CUDA's only where the number of GPUs is the same."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_decode(state["torch"]))
    cuda = [_decode(text) for text in state["cuda"]]
    if cuda and len(cuda) == len(_cuda_states()):
        torch.cuda.set_rng_state_all(cuda)


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _encode(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
