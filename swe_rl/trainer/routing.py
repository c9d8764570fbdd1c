"""The routers of a mixture while it trains: what they choose is counted, and may be what the engine chose.

Routing replay: Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers, arXiv:2510.11370,
section 3. The choice is the engine's; its weights are the trainer's own softmax over the chosen experts, so that
gradients reach the router.
Invariants:
- Each trained token counts once in each layer: by the hidden state that predicts it, in the pass that has a gradient.
  Padding, passes for old or reference log-probabilities, and recomputation count nothing.
- What is replayed is replayed in every pass of the policy, recomputation in the backward pass included. A reference
  chooses for itself. So does the policy where a choice is not known.
- Counts are whole numbers of this rank; those of all ranks add up to what one rank would count.
- The loss that balances the load is over the trained tokens of a whole mini-batch, on all ranks: how these are split
  changes nothing. Its gradient enters where the router's weights are, so that it is part of the layer's own.
- A dense model has no counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swe_rl.algo.row import Routes, Row
from swe_rl.config.choices import RoutingReplay
from swe_rl.model.experts import unknown_route
from swe_rl.trainer.batching import MicroBatch, input_length
from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import PackedBatch

_UNKNOWN = -1  # in tensors of int16, whose sign the routes of engines do not have
AnyBatch = TypeVar("AnyBatch", bound=MicroBatch | PackedBatch)


class Routing:
    def __init__(self, model: nn.Module, mesh: Mesh, replay: RoutingReplay, balance_coef: float = 0.0) -> None:
        """Hooks the routers of `model`, which is under transformers' own names; it computes on the mesh's device.

        `balance_coef`: of the loss that balances the load; 0: none.
        """
        blocks: list[Any] = [
            module for module in model.modules() if hasattr(module, "experts") and hasattr(module, "gate")
        ]
        routers = [block.gate for block in blocks]
        self._mesh, self._replay = mesh, replay
        self._tokens = [torch.zeros(gate.num_experts, dtype=torch.int64, device=mesh.device) for gate in routers]
        self._choices = torch.zeros(2, dtype=torch.int64, device=mesh.device)  # compared, of these different
        self._size = (len(routers), routers[0].top_k, routers[0].num_experts) if routers else (0, 0, 0)
        self._coef = balance_coef if routers else 0.0
        self._load = torch.zeros(self._size[2], dtype=torch.int64, device=mesh.device)
        self._loaded: Tensor | None = None  # positions
        self._balance = torch.zeros((), dtype=torch.float64, device=mesh.device)
        self._pull: tuple[Tensor, Tensor, float] | None = None  # positions, `pull`, scale
        self._positions: Tensor | None = None
        self._routes: Tensor | None = None
        for layer, gate in enumerate(routers):
            gate.register_forward_hook(partial(self._routed, layer))

    def of(self, batch: AnyBatch, rows: Sequence[Row]) -> AnyBatch:
        """The micro-batch with what its members were routed to, where that is to be looked at.

        Raises TrainerError where it is of another model.
        """
        members = [rows[i] for i in batch.members]
        if self._replay is RoutingReplay.none or all(row.routes is None for row in members):
            return batch
        layers, active, experts = self._size
        for row in members:
            if row.routes is not None and (row.routes.shape[1:] != (layers, active) or _largest(row.routes) >= experts):
                raise TrainerError(
                    f"The engine sent the tokens of trajectory {row.trajectory_id} to experts up to number "
                    f"{_largest(row.routes)}, {row.routes.shape[2]} of each of {row.routes.shape[1]} layers; the "
                    f"trainer's model has {experts}, {active} of each of {layers}: it is another one."
                )
        parts: list[npt.NDArray[np.int16]] = [self._part(row) for row in members]
        if isinstance(batch, MicroBatch):
            width = batch.input_ids.shape[1]
            parts = [np.concatenate([part, self._blank(width - len(part))]) for part in parts]
            joined = np.concatenate(parts)
        else:
            share = batch.input_ids.shape[1]
            whole = np.concatenate([*parts, self._blank(batch.segments.total - sum(map(len, parts)))])
            joined = whole[self._mesh.sp_rank * share :][:share]
        return replace(batch, routes=torch.from_numpy(joined).to(self._mesh.device))

    @contextmanager
    def replaying(self, routes: Tensor | None) -> Iterator[None]:
        """`routes` of `of`, for a forward pass of the policy and the backward pass that belongs to it."""
        self._routes = routes
        try:
            yield
        finally:
            self._routes = None

    @contextmanager
    def counting(self, positions: Tensor | None) -> Iterator[None]:
        """Inside of the block the hidden states at `positions` [trained tokens] of a micro-batch are counted."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    @property
    def balances(self) -> bool:
        return self._coef > 0.0

    @contextmanager
    def loading(self, positions: Tensor) -> Iterator[None]:
        """As `counting`, for `pull`: a pass before the mini-batch's own."""
        self._loaded = positions if self.balances else None
        try:
            yield
        finally:
            self._loaded = None

    def pull(self) -> Tensor | None:
        """What an expert's probability at one token adds to the loss, float32 [experts]; of the passes in `loading`
        since the last call. None where there is no such loss.

        N sum_i f_i P_i over N experts: f_i are choices of expert i by token and layer, P_i is its mean probability
        (Switch Transformer, arXiv:2101.03961, equations 4 to 6; over all layers at once, as transformers has it). f has
        no gradient, so P's is all there is.
        """
        if not self.balances:
            return None
        load = self._mesh.sum(self._load).double()
        self._load.zero_()
        routed = (load.sum() / self._size[1]).clamp(min=1.0)  # tokens times layers
        return (self._coef * self._size[2] * load / routed / routed).float()

    @contextmanager
    def balancing(self, positions: Tensor, pull: Tensor | None, scale: float) -> Iterator[None]:
        """Around a forward pass and its backward pass, which adds `scale` times the gradient of the loss of `pull`."""
        self._pull = None if pull is None else (positions, pull, scale)
        try:
            yield
        finally:
            self._pull = None

    def taken_balance(self) -> Tensor | None:
        """The balancing loss before its coefficient, this rank's part, summed over the updates since the last call."""
        if not self.balances:
            return None
        balance = self._balance / self._coef
        self._balance = torch.zeros_like(self._balance)
        return balance

    def taken(self) -> "Tensor | None":
        """Tokens [layers, experts] since the last call; None of a dense model."""
        if not self._tokens:
            return None
        tensor = torch.stack(self._tokens)
        for counts in self._tokens:
            counts.zero_()
        return tensor

    def taken_choices(self) -> Tensor:
        """Choices of the engine that were compared since the last call, and those that the trainer's routers would not
        have made: int64 [2]."""
        choices = self._choices.clone()
        self._choices.zero_()
        return choices

    def _part(self, row: Row) -> npt.NDArray[np.int16]:
        length = input_length(row.loss_mask)
        if row.routes is None:
            return self._blank(length)
        routes = row.routes[:length].astype(np.int16)
        routes[row.routes[:length] == unknown_route(row.routes.dtype)] = _UNKNOWN
        return routes

    def _blank(self, tokens: int) -> npt.NDArray[np.int16]:
        return np.full((tokens, *self._size[:2]), _UNKNOWN, np.int16)

    def _routed(self, layer: int, gate: Any, _: Any, output: Any) -> Any:
        """`output`: logits [tokens, experts], weights and numbers of the chosen ones [tokens, active]."""
        logits, weights, chosen = output
        if self._routes is not None:
            theirs = self._routes[:, layer].long()
            known = theirs != _UNKNOWN
            theirs = torch.where(known, theirs, chosen)
            if self._positions is not None:
                self._compare(chosen[self._positions], theirs[self._positions], known[self._positions])
            if self._replay is RoutingReplay.replay:
                chosen, weights = theirs, _weights(gate, logits, theirs)
        if self._positions is not None:
            counts = self._tokens[layer]
            counts += torch.bincount(chosen[self._positions].flatten(), minlength=len(counts))
        if self._loaded is not None:
            self._load += torch.bincount(chosen[self._loaded].flatten(), minlength=len(self._load))
        if self._pull is not None and torch.is_grad_enabled():
            weights = self._pulled(logits, weights, *self._pull)
        return logits, weights, chosen

    def _pulled(self, logits: Tensor, weights: Tensor, positions: Tensor, pull: Tensor, scale: float) -> Tensor:
        loss = (torch.softmax(logits[positions], dim=-1, dtype=torch.float32) * pull).sum()
        if self._positions is not None:  # else it is recomputed
            self._balance = self._balance + loss.detach().double()
        pulled: Tensor = _WithLoss.apply(weights, loss * scale)  # type: ignore[no-untyped-call]
        return pulled

    def _compare(self, ours: Tensor, theirs: Tensor, known: Tensor) -> None:
        missed = (theirs[:, :, None] != ours[:, None, :]).all(-1) & known
        self._choices += torch.stack([known.sum(), missed.sum()])


class _WithLoss(torch.autograd.Function):
    """`values` as they are; in the backward pass the gradient of `loss` joins theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], torch.ones_like(ctx.saved_tensors[0])


def _weights(gate: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """As transformers' router makes them of its own choice."""
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(1, chosen)
    if gate.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype)


def _largest(routes: Routes) -> int:
    """Number of an expert; -1 where none is known."""
    known = routes[routes != unknown_route(routes.dtype)]
    return int(known.max()) if known.size else -1


def load_max(tokens: Tensor) -> float | None:
    """The most used expert's tokens over an even share, mean over layers; `tokens` [layers, experts]. 1: even."""
    total = tokens.sum(dim=1)
    if not int(total.min()):
        return None
    return float((tokens.max(dim=1).values * tokens.shape[1] / total).mean())


def unused_rate(tokens: Tensor) -> float | None:
    """The share of all layers' experts that no token was sent to."""
    return float((tokens == 0).double().mean()) if int(tokens.sum()) else None


def load_entropy(tokens: Tensor) -> float | None:
    """Entropy of a layer's tokens over its experts, as a share of the largest there is (1: even), mean over layers."""
    total = tokens.sum(dim=1, keepdim=True)
    if not int(total.min()) or tokens.shape[1] < 2:
        return None
    entropies = torch.special.entr(tokens.double() / total).sum(dim=1)
    return float((entropies / np.log(tokens.shape[1])).mean())
