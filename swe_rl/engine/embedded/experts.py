"""A mixture of experts in the embedded engine: every row passes the experts that its router chooses.

Invariants:
- A row's result does not depend on the other rows: an expert multiplies at least `ROW_MULTIPLE` rows, and a row's
  experts are added in the order of their numbers.
- The router's choice and weights are those of transformers' Qwen3-MoE.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

ROW_MULTIPLE = 8  # below four rows the matrix library sums in another order


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """`router` [experts, hidden], `gate_up` [experts, 2 * inner, hidden], `down` [experts, hidden, inner]."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    active: int  # experts of one row
    normalised: bool  # their weights sum to 1
    act: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(functional.linear(rows, self.router), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(shares, self.active, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(rows)
        for expert in torch.unique(chosen).tolist():
            at, place = torch.where(chosen == expert)
            gate, up = functional.linear(padded(rows[at]), self.gate_up[expert]).chunk(2, dim=-1)
            found = functional.linear(self.act(gate).mul_(up), self.down[expert])[: len(at)]
            mixed.index_add_(0, at, found * weights[at, place, None])
        return mixed


def pack_experts(block: Any) -> PackedExperts:
    """Of a `Qwen3MoeSparseMoeBlock`; nothing is copied."""
    gate, experts = block.gate, block.experts
    return PackedExperts(
        router=gate.weight,
        gate_up=experts.gate_up_proj,
        down=experts.down_proj,
        active=gate.top_k,
        normalised=gate.norm_topk_prob,
        act=experts.act_fn,
    )


def padded(rows: torch.Tensor) -> torch.Tensor:
    """With rows of zeros, up to a multiple of `ROW_MULTIPLE`."""
    missing = -rows.shape[0] % ROW_MULTIPLE
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows
