"""Weights have two kinds of names: those of a model in memory, and those of the hub. This module maps one to the other.

In memory transformers keeps one tensor for all experts of a layer: `X.mlp.experts.gate_up_proj` [experts, gate rows
then up rows, hidden] and `X.mlp.experts.down_proj` [experts, hidden, intermediate]. The hub, `save_pretrained` and vLLM
have one tensor for each expert: `X.mlp.experts.3.gate_proj.weight`, `up_proj`, `down_proj`. That is the rule of the
fast families, `expert_parts`; `stored_names` finds the rule of any other family.

Invariants:
- The tensors of the hub's names are views; together they cover the tensor in memory exactly once.
- The trainer and its checkpoints use the names in memory. What leaves for an engine or a folder has the hub's.
- All other tensors have one name, and pass as they are.
- The experts that tokens went to ("routes") are [tokens, layers with experts, experts a token] of the smallest unsigned
  type that holds their numbers and one more, which says that a choice is not known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_GATE_UP = ".mlp.experts.gate_up_proj"
_DOWN = ".mlp.experts.down_proj"


def route_type(num_experts: int) -> "np.dtype[Any]":
    """Returns the type of routes among so many experts."""
    return np.dtype(np.uint8 if num_experts <= np.iinfo(np.uint8).max else np.uint16)


def unknown_route(kind: "np.dtype[Any]") -> int:
    """Returns the number that stands in routes of this type if a choice is not known."""
    return int(np.iinfo(kind).max)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Rows `start` .. `stop` of one expert, or of the tensor itself without `expert`; the hub has them under `name`."""

    name: str
    expert: int | None
    start: int
    stop: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Returns the part's shape, given that of the tensor in memory."""
        if self.expert is None:
            inner = whole[1:]
        else:
            inner = whole[2:]
        return (self.stop - self.start, *inner)

    def of(self, tensor: "Tensor") -> "Tensor":
        """Returns the part as a view of the whole tensor in memory."""
        if self.expert is None:
            rows = tensor
        else:
            rows = tensor[self.expert]
        return rows[self.start : self.stop]


# Gives the parts of a tensor by its name and shape in memory; none of a tensor that is the same in both.
StoredLayout = Callable[[str, Sequence[int]], Sequence[StoredPart]]


def expert_parts(name: str, shape: Sequence[int]) -> list[StoredPart]:
    """Returns the parts of a tensor of all experts, by its name and shape in memory; empty for any other tensor."""
    spans: tuple[tuple[str, int, int], ...]
    if name.endswith(_GATE_UP):
        prefix = name.removesuffix("gate_up_proj")
        half = shape[1] // 2
        spans = (("gate_proj", 0, half), ("up_proj", half, shape[1]))
    elif name.endswith(_DOWN):
        prefix = name.removesuffix("down_proj")
        spans = (("down_proj", 0, shape[1]),)
    else:
        return []
    return [
        StoredPart(f"{prefix}{expert}.{kind}.weight", expert, start, stop)
        for expert in range(shape[0])
        for kind, start, stop in spans
    ]


def hub_shapes(
    name: str, shape: Sequence[int], layout: StoredLayout = expert_parts
) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the hub's names and shapes of what a tensor in memory holds."""
    shapes = [(part.name, part.shape(shape)) for part in layout(name, shape)]
    return shapes or [(name, tuple(shape))]


def hub_tensors(name: str, tensor: "Tensor", layout: StoredLayout = expert_parts) -> "Iterator[tuple[str, Tensor]]":
    """Yields the hub's names with views of a whole tensor."""
    parts = layout(name, tensor.shape)
    for part in parts:
        yield part.name, part.of(tensor)
    if not parts:
        yield name, tensor


class HubNamed(Mapping[str, "Tensor"]):
    """Shows weights of a model in memory under the hub's names; each is read when it is asked for."""

    def __init__(self, weights: "Mapping[str, Tensor]", layout: StoredLayout = expert_parts) -> None:
        self._weights = weights
        self._where: dict[str, tuple[str, StoredPart | None]] = {}
        for name in weights:
            # Reading a merged weight computes it, so a shape is asked for only where it matters.
            as_it_is = layout is expert_parts and not name.endswith((_GATE_UP, _DOWN))
            parts = () if as_it_is else layout(name, weights[name].shape)
            self._where |= {part.name: (name, part) for part in parts}
            if not parts:
                self._where[name] = (name, None)

    def __getitem__(self, name: str) -> "Tensor":
        whole, part = self._where[name]
        tensor = self._weights[whole]
        if part is None:
            return tensor
        return part.of(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
