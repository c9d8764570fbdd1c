"""What a trainer must offer to send weights straight to the engines' memory, without a folder between them.

Invariants:
- Nothing of torch is needed here: names, types and shapes travel as words and numbers.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.plan.sizes import uses_no_gpu
from swe_rl.plan.weight_sync import wanted

if TYPE_CHECKING:
    import torch

GLOO, NCCL, IPC = "gloo", "nccl", "swe_rl_ipc"  # names of back ends in vLLM's workers; its own `ipc` is another one
# How vLLM packs tensors for NCCL; sender and receivers must agree.
NCCL_BUFFER_BYTES, NCCL_BUFFERS = 2**30, 2


class NoVllmBesideTrainerError(UserError):
    """trainer.weight_sync=nccl where only the servers have vLLM."""


def transfer_kind(config: Config) -> str | None:
    """None where weights go another way."""
    way = wanted(config, os.environ)
    if config.engine.kind is EngineKind.embedded or way is WeightSync.disk:
        return None
    if way is WeightSync.ipc:
        return IPC
    if uses_no_gpu(config.layout):
        return GLOO
    return NCCL if config.trainer.weight_sync is WeightSync.nccl or _has_vllm() else None


def require_wire(config: Config) -> None:
    """Before anything is started. Raises NoVllmBesideTrainerError."""
    if transfer_kind(config) == NCCL and not _has_vllm():
        raise NoVllmBesideTrainerError(
            "trainer.weight_sync=nccl: the trainer's end is vLLM's own, and vLLM is not installed in this environment, "
            "whatever the servers are started with. Install the extra `gpu` here, or take trainer.weight_sync=disk"
        )


def _has_vllm() -> bool:
    """Here, and so where the trainer's ranks are. Nothing is imported to find out."""
    return importlib.util.find_spec("vllm") is not None


@dataclass(frozen=True, slots=True)
class Announced:
    """A tensor that will be sent, `dtype` as torch calls it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Of one transfer, at the sender. `gather_s`: putting tensors together; `wire_s`: all else. `problem`: why not."""

    gather_s: float = 0.0
    wire_s: float = 0.0
    sent_bytes: int = 0
    problem: str | None = None


class SendsWeights(Protocol):
    """All of it blocks its thread. `twice`: second names of some tensors, with the first ones."""

    def weights(self) -> "Mapping[str, torch.Tensor]":
        """The way through a folder, for a server that was started anew."""
        ...

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        """Host and free port where receivers find the sender; `loopback`: all are on its host."""
        ...

    def open_wire(self, kind: str, host: str, port: int, world: int) -> str | None:
        """Returns when all `world` ends, the sender's included, have met; or what went wrong."""
        ...

    def announce_weights(self, twice: Mapping[str, str]) -> Sequence[Announced]:
        """What `transfer_weights` will send, in its order."""
        ...

    def transfer_weights(self, twice: Mapping[str, str]) -> Sent: ...
