"""New weights for the embedded engine, copied in place.

Invariants:
- All names and shapes are checked before the first value is written: a refused update changes nothing.
- Names are the hub's: each expert of a mixture has tensors of its own.
- Tied parameters are one tensor with several names: any one of them will do, and all that are given must agree.
"""

from collections.abc import Mapping
from typing import Any

import torch

from swe_rl.engine.protocol import EngineError
from swe_rl.model.experts import HubNamed


class WeightLoader:
    def __init__(self, model: Any) -> None:
        self._targets: dict[str, torch.Tensor] = dict(HubNamed(model.state_dict()))
        self._names_by_storage: dict[int, list[str]] = {}
        for name, target in self._targets.items():
            self._names_by_storage.setdefault(target.data_ptr(), []).append(name)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copies `weights`; raises EngineError naming the first mismatch."""
        self._require_known(weights)
        for names in self._names_by_storage.values():
            self._require_given(names, weights)
        with torch.no_grad():
            for name, value in weights.items():
                self._targets[name].copy_(value)

    def _require_known(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            target = self._targets.get(name)
            if target is None:
                raise EngineError(f"Weight update refused: the engine's model has no parameter `{name}`.")
            if target.shape != value.shape:
                raise EngineError(
                    f"Weight update refused: `{name}` has shape {list(value.shape)}, the engine's model has "
                    f"{list(target.shape)}."
                )

    def _require_given(self, names: list[str], weights: Mapping[str, torch.Tensor]) -> None:
        given = [name for name in names if name in weights]
        if not given:
            raise EngineError(f"Weight update refused: `{names[0]}` is missing.")
        for name in given[1:]:
            if not torch.equal(weights[given[0]], weights[name]):
                raise EngineError(f"Weight update refused: `{given[0]}` and `{name}` are tied but their values differ.")
