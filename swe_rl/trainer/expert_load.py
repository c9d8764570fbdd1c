"""How a mixture's tokens are spread over its experts, counted where they are routed.

Invariants:
- Each trained token counts once in each layer: by the hidden state that predicts it, in the pass that has a gradient.
  Padding, passes for old or reference log-probabilities, and recomputation count nothing.
- Counts are whole numbers of this rank; those of all ranks add up to what one rank would count.
- A dense model has no counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class ExpertLoad:
    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Hooks the routers of `model`, which is under transformers' own names; `device` is where it computes."""
        blocks: list[Any] = [
            module for module in model.modules() if hasattr(module, "experts") and hasattr(module, "gate")
        ]
        routers = [block.gate for block in blocks]
        self._counts = [torch.zeros(gate.num_experts, dtype=torch.int64, device=device) for gate in routers]
        self._positions: Tensor | None = None
        for counts, gate in zip(self._counts, routers, strict=True):
            gate.register_forward_hook(partial(self._count, counts))

    @contextmanager
    def counting(self, positions: Tensor) -> Iterator[None]:
        """Inside of the block the hidden states at `positions` [trained tokens] of a micro-batch are counted."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    def taken(self) -> Tensor | None:
        """Tokens [layers, experts] since the last call; None of a dense model."""
        if not self._counts:
            return None
        tensor = torch.stack(self._counts)
        for counts in self._counts:
            counts.zero_()
        return tensor

    def _count(self, counts: Tensor, gate: nn.Module, _: Any, output: Any) -> None:
        if self._positions is not None:
            chosen = output[2][self._positions]  # logits, weights, numbers of the experts: each [tokens, ...]
            counts += torch.bincount(chosen.flatten(), minlength=len(counts))


def load_max(tokens: Tensor) -> float | None:
    """The most used expert's tokens over an even share, mean over layers; `tokens` [layers, experts]. 1: even."""
    total = tokens.sum(dim=1)
    if not int(total.min()):
        return None
    return float((tokens.max(dim=1).values * tokens.shape[1] / total).mean())


def unused_rate(tokens: Tensor) -> float | None:
    """The share of all layers' experts that no token was sent to."""
    return float((tokens == 0).double().mean()) if int(tokens.sum()) else None
