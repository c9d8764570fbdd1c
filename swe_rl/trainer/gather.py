"""Whole weights from shards, one tensor at a time: what a weight update sends to the engines.

Invariants:
- Every rank iterates to the end, in the same order: each tensor is a collective.
- Shards are rounded to the engines' type before they travel, which halves the bytes.
- Tied weights come once, under the name of the embedding.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from swe_rl.trainer.shard import whole


def gathered(weights: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> Iterator[tuple[str, Tensor]]:
    """Name and whole tensor, on every rank's own device; `weights` is `Trainer.engine_weights()`."""
    for name, tensor in weights.items():
        yield name, whole(tensor.detach().to(dtype))
