"""The experts of a mixture under two kinds of names: those of a model in memory, and those of the hub.

In memory transformers keeps one tensor for all experts of a layer: `X.mlp.experts.gate_up_proj` [experts, gate rows
then up rows, hidden] and `X.mlp.experts.down_proj` [experts, hidden, intermediate]. The hub, `save_pretrained` and vLLM
have one tensor for each expert: `X.mlp.experts.3.gate_proj.weight`, `up_proj`, `down_proj`.
Invariants:
- The tensors of the hub's names are views; together they cover the tensor in memory exactly once.
- The trainer and its checkpoints use the names in memory. What leaves for an engine or a folder has the hub's.
- All other tensors have one name, and pass as they are.
- The experts that tokens went to ("routes") are [tokens, layers with experts, experts a token] of the smallest unsigned
  type that holds their numbers and one more, which says that a choice is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_GATE_UP, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


def route_type(num_experts: int) -> "np.dtype[Any]":
    """Of routes among so many experts."""
    return np.dtype(np.uint8 if num_experts <= np.iinfo(np.uint8).max else np.uint16)


def unknown_route(kind: "np.dtype[Any]") -> int:
    """What stands in routes of this type where a choice is not known."""
    return int(np.iinfo(kind).max)


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """Rows `start` .. `stop` of one expert, which the hub has under `name`."""

    name: str
    expert: int
    start: int
    stop: int


def expert_parts(name: str, shape: Sequence[int]) -> list[ExpertPart]:
    """Of a tensor of all experts, by its name and shape in memory; empty for any other tensor."""
    spans: tuple[tuple[str, int, int], ...]
    if name.endswith(_GATE_UP):
        prefix, half = name.removesuffix("gate_up_proj"), shape[1] // 2
        spans = (("gate_proj", 0, half), ("up_proj", half, shape[1]))
    elif name.endswith(_DOWN):
        prefix, spans = name.removesuffix("down_proj"), (("down_proj", 0, shape[1]),)
    else:
        return []
    return [
        ExpertPart(f"{prefix}{expert}.{kind}.weight", expert, start, stop)
        for expert in range(shape[0])
        for kind, start, stop in spans
    ]


def hub_shapes(name: str, shape: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    """The hub's names and shapes of what a tensor in memory holds."""
    parts = expert_parts(name, shape)
    return [(part.name, (part.stop - part.start, shape[2])) for part in parts] or [(name, tuple(shape))]


def hub_tensors(name: str, tensor: "Tensor") -> "Iterator[tuple[str, Tensor]]":
    """The same as views of a whole tensor."""
    parts = expert_parts(name, tensor.shape)
    for part in parts:
        yield part.name, tensor[part.expert, part.start : part.stop]
    if not parts:
        yield name, tensor


class HubNamed(Mapping[str, "Tensor"]):
    """Weights of a model in memory under the hub's names; each is read when it is asked for."""

    def __init__(self, weights: "Mapping[str, Tensor]") -> None:
        self._weights = weights
        self._where: dict[str, tuple[str, ExpertPart | None]] = {}
        for name in weights:
            parts = expert_parts(name, weights[name].shape) if name.endswith((_GATE_UP, _DOWN)) else []
            self._where |= {part.name: (name, part) for part in parts}
            if not parts:
                self._where[name] = (name, None)

    def __getitem__(self, name: str) -> "Tensor":
        whole, part = self._where[name]
        tensor = self._weights[whole]
        return tensor if part is None else tensor[part.expert, part.start : part.stop]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
