"""This module says how weights travel over memory to vLLM's workers, and whether this environment can send them so.

Invariants:
- It takes vLLM beside the trainer to send over NCCL.
"""

import os

from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.facts.sizes import uses_no_gpu, wanted_sync
from swe_rl.host.packages import installed_version

# vLLM's workers know back ends by these names. Its own `ipc` is another one than ours.
GLOO = "gloo"
NCCL = "nccl"
IPC = "swe_rl_ipc"


class NoVllmBesideTrainerError(UserError):
    """trainer.weight_sync=nccl is wanted, and only the servers have vLLM."""


def way_of(config: Config) -> WeightSync:
    """Returns how weights reach engines that are servers, here: `auto` takes a folder if this environment has no
    vLLM."""
    way = wanted_sync(config, os.environ)
    by_itself = way is WeightSync.nccl and config.trainer.weight_sync is WeightSync.auto
    if by_itself and not _has_vllm():
        return WeightSync.disk
    return way


def transfer_kind(config: Config) -> str | None:
    """Returns the back end that vLLM's workers use, or None if weights go another way."""
    way = way_of(config)
    if config.engine.kind is EngineKind.embedded or way is WeightSync.disk:
        # The result is None and not an empty text, so that whoever inherits it may leave it.
        return None
    if way is WeightSync.ipc:
        return IPC
    if uses_no_gpu(config.layout):
        return GLOO
    return NCCL


def require_wire(config: Config) -> None:
    """Raises NoVllmBesideTrainerError before anything is started, if weights cannot be sent."""
    if transfer_kind(config) == NCCL and not _has_vllm():
        raise NoVllmBesideTrainerError(
            "trainer.weight_sync=nccl: the trainer's end is vLLM's own, and vLLM is not installed in this environment, "
            "whatever the servers are started with. Install the extra `gpu` here, or take trainer.weight_sync=disk"
        )


def _has_vllm() -> bool:
    """Tells whether vLLM is installed here, and so where the trainer's ranks are. Nothing is imported to find out."""
    return installed_version("vllm") is not None
