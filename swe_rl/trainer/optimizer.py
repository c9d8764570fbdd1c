"""The module is AdamW with gradient clipping that refuses to apply what is not finite, and sets torch's threads.

Invariants:
- Weights never become non-finite through an update: such an update is dropped and counted.
- A gradient that is zero as a whole moves nothing: there was nothing to learn, and AdamW would go on by its momentum.
- After `MAX_NONFINITE` dropped updates in a row the run stops, because the policy no longer learns.
- Its state is a flat mapping of names to tensors (`exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`; the scales of 8 bits
  beside them), free of pickle and of the parameters' order.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swe_rl.config.choices import OptimizerState
from swe_rl.trainer.compact_adamw import MOMENTS, SCALES, CompactAdamW, fresh_state, state_keys
from swe_rl.trainer.sharded.mesh import gather_whole, local_shard, replicas_of, shard_range
from swe_rl.trainer.trainer import TrainerError

MAX_NONFINITE = 3
# torch's own clipping adds the same number, so that one rank and many scale alike.
_EPS = 1e-6
# It returns the rows first .. last + 1 of a named tensor.
RowsOf = Callable[[str, int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one update. `grad_norm` is the global L2 norm before clipping; `applied` is False if not finite or
    0.

    With `repeated` the gradient was computed a second time, and all else is said of the second.
    """

    grad_norm: float
    applied: bool
    repeated: bool = False

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True)
class CriticMetrics:
    """The figures of PPO's critic in one step.

    loss and grad_norm (before clipping) are means over its updates without those dropped; None without any.
    repeated_updates is as in `TrainMetrics`. explained is 1 - variance of target less value over that of targets,
    before the updates.
    """

    loss: float | None
    explained: float | None
    grad_norm: float | None
    repeated_updates: int


class Optimizer:
    """The optimizer of one model. Gradients are accumulated on the parameters, and `apply` consumes them."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        grad_clip: float,
        offload_threads: int = 0,
        kind: OptimizerState = OptimizerState.float32,
    ) -> None:
        """Makes an AdamW. `grad_clip` bounds the global gradient norm; 0 leaves the clipping off.

        `offload_threads` is the number of the host's cores that update weights which rest in the host's memory although
        they are computed with on a GPU; 0 says that they do not. `kind` is what the moments rest in.
        """
        self._params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._offload_threads = offload_threads
        self._kind = kind
        # Fused: one kernel, no temporary copies. Elsewhere torch's own choice, whose bits older runs have.
        fused = None
        if offload_threads or all(p.is_cuda for p in self._params.values()):
            fused = True
        self._params_by_mesh = _group_by_mesh(self._params.values())
        # No kernel takes both kinds at once.
        groups = [{"params": params} for params in self._params_by_mesh]
        names: dict[Tensor, str] = {param: name for name, param in self._params.items()}
        if kind is OptimizerState.float32:
            self._adamw: torch.optim.Optimizer = torch.optim.AdamW(
                groups, lr=lr, weight_decay=weight_decay, betas=betas, fused=fused
            )
        else:
            self._adamw = CompactAdamW(groups, names, kind, lr=lr, weight_decay=weight_decay, betas=betas)
        if grad_clip > 0:
            self._max_norm = grad_clip
        else:
            self._max_norm = math.inf
        self.lr = lr
        self.nonfinite_in_a_row = 0

    def apply(self, lr: float, again: Callable[[], bool] | None = None) -> Update:
        """Clips, updates with this learning rate and clears the gradients.

        `again` is asked where the norm is not finite, and accumulates the gradients anew, or returns False. Raises
        TrainerError at the third update in a row that is not finite in the end.
        """
        norm = self._clip()
        repeated = False
        if again is not None and not math.isfinite(norm):
            self._adamw.zero_grad(set_to_none=True)
            if repeated := again():
                norm = self._clip()
        with torch_threads(self._offload_threads or torch.get_num_threads()):
            finite = math.isfinite(norm)
            applied = finite and norm > 0.0
            if applied:
                self._set_lr(lr)
                self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        # A gradient of 0 says nothing about whether the policy still learns.
        if applied or not finite:
            if applied:
                self.nonfinite_in_a_row = 0
            else:
                self.nonfinite_in_a_row = self.nonfinite_in_a_row + 1
        if self.nonfinite_in_a_row >= MAX_NONFINITE:
            raise TrainerError(
                f"The gradient norm was not finite in {MAX_NONFINITE} updates in a row (last: {norm}); none of them "
                "was applied, so the weights are still those of the last good update. Lower trainer.lr or "
                "trainer.grad_clip, and look for extreme values in the step's rewards and log-probabilities."
            )
        return Update(grad_norm=norm, applied=applied, repeated=repeated)

    def _clip(self) -> float:
        with torch_threads(self._offload_threads or torch.get_num_threads()):
            return _clip_gradients(self._params_by_mesh, self._max_norm)

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns detached views of the state, empty before the first update."""
        states = ((name, self._adamw.state.get(param, {})) for name, param in self._params.items())
        keys = (*MOMENTS, *SCALES.values(), "step")
        return {f"{key}.{name}": state[key].detach() for name, state in states for key in keys if key in state}

    def forget(self) -> None:
        """Puts the optimizer back to before the first update."""
        self._adamw.state.clear()

    def load_shards(self, names: Collection[str], rows: RowsOf) -> None:
        """Reads the state of each parameter's own rows; `names` are those that there are. Raises TrainerError."""
        if not names:
            self.forget()
            return
        self._require_all(names)
        for name, param in self._params.items():
            start, stop = shard_range(param)
            state = fresh_state(param, self._kind)
            for key, tensor in state.items():
                stored = rows(f"{key}.{name}", start, stop)
                self._require_kind(stored, tensor)
                local_shard(tensor).copy_(stored)
            state["step"] = _step_like(rows(f"step.{name}", 0, 0), param)
            self._adamw.state[param] = state

    def _require_all(self, names: Collection[str]) -> None:
        keys = {name: (*state_keys(param, self._kind), "step") for name, param in self._params.items()}
        expected = {f"{key}.{name}" for name in keys for key in keys[name]}
        if any("_scale." in name for name in set(names) ^ expected):
            there = "not int8"
            if self._kind is not OptimizerState.int8:
                there = OptimizerState.int8
            raise TrainerError(self._another_kind(there))
        if set(names) != expected:
            odd = sorted(set(names) ^ expected)[:3]
            raise TrainerError(f"The optimizer state is of another model: {odd} are missing or too many.")

    def _require_kind(self, stored: Tensor, tensor: Tensor) -> None:
        """Raises TrainerError where moments are of another type: a run in other bits from here on would
        be neither run.
        """
        if stored.dtype is not tensor.dtype:
            raise TrainerError(self._another_kind(str(stored.dtype).removeprefix("torch.")))

    def _another_kind(self, there: str) -> str:
        return (
            f"The optimizer's moments are {there} in the checkpoint, and trainer.optimizer_state={self._kind} here. "
            "Resume with the trainer.optimizer_state that it was saved with."
        )

    def _set_lr(self, lr: float) -> None:
        self.lr = lr
        for group in self._adamw.param_groups:
            group["lr"] = lr


def _group_by_mesh(params: Iterable[Tensor]) -> list[list[Tensor]]:
    """Returns groups of parameters that are spread alike: experts over groups, all else over all ranks."""
    kinds: dict[Any, list[Tensor]] = {}
    for param in params:
        kinds.setdefault(getattr(param, "device_mesh", None), []).append(param)
    return list(kinds.values())


def _clip_gradients(kinds: Sequence[Sequence[Tensor]], max_norm: float) -> float:
    """Returns the L2 norm of all gradients before they are scaled down to `max_norm`; each weight counts once."""
    replicas = 1
    if kinds:
        replicas = replicas_of(kinds[0][0])
    if len(kinds) == 1 and replicas == 1:
        return float(gather_whole(nn.utils.clip_grad_norm_(kinds[0], max_norm)))
    gradients = [local_shard(param.grad) for kind in kinds for param in kind if param.grad is not None]
    square = nn.utils.get_total_norm(gradients).double() ** 2
    # The sum goes over all ranks, which have each row once a replica. It is one sum, so that replicas stay the same.
    dist.all_reduce(square)
    norm = float((square / replicas).sqrt())
    torch._foreach_mul_(gradients, min(1.0, max_norm / (norm + _EPS)))
    return norm


def _step_like(step: Tensor, param: Tensor) -> Tensor:
    """Returns a copy where AdamW wants it: beside the parameter if that is on a GPU (fused), on the host otherwise."""
    return step.detach().to(param.device if param.is_cuda else "cpu", copy=True)


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Sets torch's threads inside of the block, and the former number at the end: an engine in this process keeps its
    own.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
