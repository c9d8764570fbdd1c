"""Base and adapter as one: the weights that engines get, each put together when it is asked for.

Invariants:
- W + (alpha / rank) B A in float32; while B is zero that is W itself. Names are transformers' own, tied weights once;
  `MergedForEngines` has the hub's.
- One weight at a time exists merged; base and adapter are never changed.
- Of sharded parameters the result is sharded as the base is. Reading such a value is a collective: every rank reads
  the same names in the same order.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swe_rl.engine.transfer.protocol import WritesFiles
from swe_rl.model.experts import HubNamed
from swe_rl.trainer.checkpoint.durable import write_file
from swe_rl.trainer.checkpoint.tensor_file import safetensors_chunks
from swe_rl.trainer.lora.names import is_adapter, pair, plain
from swe_rl.trainer.sharded.shard import is_sharded, local_shard, whole

_FILE = "model.safetensors"


class MergedWeights(Mapping[str, Tensor]):
    """Of a model with an adapter."""

    def __init__(self, parameters: Mapping[str, Tensor], scale: float) -> None:
        """`parameters` by the names that they have in the model; read when a value is asked for."""
        self._parameters, self._scale = parameters, scale
        self._names = {plain(name): name for name in parameters if not is_adapter(name)}

    def __getitem__(self, name: str) -> Tensor:
        base = self._parameters[self._names[name]]
        first, second = pair(name)
        if first not in self._parameters:
            return base
        return _sharded_as(base, self._parameters[first], self._parameters[second], self._scale)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class MergedForEngines(HubNamed, WritesFiles):
    """Of one process, under the names that engines know."""

    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """One file of an existing folder; `twice`: second names, with the first ones. Raises OSError."""
        write_file(folder / _FILE, safetensors_chunks(_Doubled(self, twice)))


class _Doubled(Mapping[str, Tensor]):
    """The same under more names."""

    def __init__(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> None:
        self._weights, self._twice = weights, dict(twice)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._twice.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._twice

    def __len__(self) -> int:
        return len(self._weights) + len(self._twice)


@torch.no_grad()
def merged(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """`base` [rows, inputs] + scale * `second` [rows, rank] @ `first` [rank, inputs], float32."""
    return torch.addmm(base.detach().float(), second.detach().float(), first.detach().float(), alpha=scale)


def _sharded_as(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """B has as many rows as the base and is sharded as it is, so each rank's product needs the whole of A alone."""
    rows = merged(local_shard(base), whole(first), local_shard(second), scale)
    if not is_sharded(base):
        return rows
    from torch.distributed.tensor import DTensor

    like: Any = base
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
