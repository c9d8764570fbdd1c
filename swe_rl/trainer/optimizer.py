"""AdamW with gradient clipping that refuses to apply what is not finite.

Invariants:
- Weights never become non-finite through an update: such an update is dropped and counted.
- After `MAX_NONFINITE` dropped updates in a row the run stops, because the policy no longer learns.
- Its state is a flat mapping of names to tensors (`exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`), free of pickle and
  of the parameters' order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swe_rl.trainer.errors import TrainerError

MAX_NONFINITE = 3
STATE_KEYS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class Update:
    """`grad_norm` is the global L2 norm before clipping; `applied` is False where it was not finite."""

    grad_norm: float
    applied: bool


class Optimizer:
    """The optimizer of one model; gradients are accumulated on the parameters, `apply` consumes them."""

    def __init__(
        self, model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float], grad_clip: float
    ) -> None:
        """`grad_clip` bounds the global gradient norm; 0 leaves the clipping off."""
        self._params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._adamw = torch.optim.AdamW(self._params.values(), lr=lr, weight_decay=weight_decay, betas=betas)
        self._max_norm = grad_clip if grad_clip > 0 else math.inf
        self.lr = lr
        self.nonfinite_in_a_row = 0

    def apply(self, lr: float) -> Update:
        """Clips, updates with this learning rate and clears the gradients.

        Raises TrainerError at the third non-finite gradient norm in a row.
        """
        norm = float(nn.utils.clip_grad_norm_(self._params.values(), self._max_norm))
        applied = math.isfinite(norm)
        if applied:
            self._set_lr(lr)
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row = 0 if applied else self.nonfinite_in_a_row + 1
        if self.nonfinite_in_a_row >= MAX_NONFINITE:
            raise TrainerError(
                f"The gradient norm was not finite in {MAX_NONFINITE} updates in a row (last: {norm}); none of them "
                "was applied, so the weights are still those of the last good update. Lower trainer.lr or "
                "trainer.grad_clip, and look for extreme values in the step's rewards and log-probabilities."
            )
        return Update(grad_norm=norm, applied=applied)

    def state_tensors(self) -> dict[str, Tensor]:
        """Detached views of the state, empty before the first update."""
        states = ((name, self._adamw.state.get(param, {})) for name, param in self._params.items())
        return {f"{key}.{name}": state[key].detach() for name, state in states for key in STATE_KEYS if key in state}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies a state in. Raises TrainerError where its names or shapes are not those of this model."""
        if not tensors:
            self._adamw.state.clear()
            return
        expected = {f"{key}.{name}" for name in self._params for key in STATE_KEYS}
        if set(tensors) != expected:
            odd = sorted(set(tensors) ^ expected)[:3]
            raise TrainerError(f"The optimizer state is of another model: {odd} are missing or too many.")
        for name, param in self._params.items():
            self._adamw.state[param] = {key: _like(tensors[f"{key}.{name}"], key, name, param) for key in STATE_KEYS}

    def _set_lr(self, lr: float) -> None:
        self.lr = lr
        for group in self._adamw.param_groups:
            group["lr"] = lr


def _like(tensor: Tensor, key: str, name: str, param: Tensor) -> Tensor:
    if key == "step":
        return tensor.detach().clone()
    if tensor.shape != param.shape:
        raise TrainerError(
            f"The optimizer state is of another model: {key}.{name} has shape {list(tensor.shape)}, "
            f"the parameter {list(param.shape)}."
        )
    return tensor.detach().to(device=param.device, copy=True)
