"""Whole weights from shards, one tensor at a time: what a weight update sends to the engines.

Invariants:
- Every rank iterates to the end, in the same order: each tensor is a collective.
- Shards are rounded to the engines' type before they travel, which halves the bytes.
- Tied weights come once, under the name of the embedding; experts come one by one, under the hub's names.
"""

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from swe_rl.model.experts import hub_tensors
from swe_rl.trainer.sharded.shard import whole

Named = tuple[str, Tensor]


def gathered(weights: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> Iterator[tuple[str, Tensor]]:
    """Name and whole tensor, on every rank's own device; `weights` is `Trainer.engine_weights()`."""
    for name, tensor in weights.items():
        yield from hub_tensors(name, whole(tensor.detach().to(dtype)))


class Stream(Iterator[Named]):
    """Whole tensors as they are put together, some of them under a second name as well; keeps the time it takes."""

    def __init__(self, tensors: Iterator[Named], second: Mapping[str, str]) -> None:
        self._tensors, self._second = tensors, second
        self._again: Named | None = None
        self.gather_s, self.bytes = 0.0, 0

    def __next__(self) -> Named:
        if self._again is not None:
            found, self._again = self._again, None
            return found
        began_s = time.perf_counter()
        try:
            name, tensor = next(self._tensors)
        finally:
            self.gather_s += time.perf_counter() - began_s
        if name in self._second:
            self._again = (self._second[name], tensor)
        self.bytes += tensor.numel() * tensor.element_size()
        return name, tensor
