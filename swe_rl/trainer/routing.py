"""Looks after a mixture's routers while it trains: it counts their choices, and may replay the engine's.

Routing replay is from Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers,
arXiv:2510.11370, section 3. The choice is the engine's; its weights are the trainer's own softmax over the chosen
experts, so that gradients reach the router.

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
from swe_rl.config.choices import ROUTED_ARCHITECTURE, RoutingReplay
from swe_rl.config.known_models import MIXTURE_FACTS
from swe_rl.model.experts import unknown_route
from swe_rl.trainer.batching import MicroBatch, input_length
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import PackedBatch
from swe_rl.trainer.trainer import TrainerError

# The mark is used in tensors of int16, whose sign the routes of engines do not have.
_UNKNOWN = -1
# A router whose choices can be counted has these.
_COUNTED = ("num_experts", "top_k")
AnyBatch = TypeVar("AnyBatch", bound=MicroBatch | PackedBatch)


class Routing:
    def __init__(self, model: nn.Module, mesh: Mesh, replay: RoutingReplay, balance_coef: float = 0.0) -> None:
        """Hooks the routers of `model`, which is under transformers' own names; it computes on the mesh's device.

        `balance_coef` is that of the loss that balances the load; 0 leaves it out.
        """
        blocks: list[Any] = [
            module
            for module in model.modules()
            if hasattr(module, "experts") and all(hasattr(getattr(module, "gate", None), name) for name in _COUNTED)
        ]
        config = getattr(model, "config", None)
        kind = getattr(config, "model_type", ROUTED_ARCHITECTURE)
        is_mixture = any(getattr(config, name, 0) for name in MIXTURE_FACTS["num_experts"])
        if is_mixture and kind != ROUTED_ARCHITECTURE:
            wanted = {"trainer.routing_replay": replay is not RoutingReplay.none, "algo.balance_coef": balance_coef > 0}
            for key in (key for key, is_set in wanted.items() if is_set):
                raise TrainerError(f"{key} is set, and the routers of a `{kind}` model are not known: leave it out.")
        routers = [block.gate for block in blocks]
        self._mesh = mesh
        self._replay = replay
        self._tokens = [torch.zeros(gate.num_experts, dtype=torch.int64, device=mesh.device) for gate in routers]
        # These are the choices that were compared, and those of them that differ.
        self._choices = torch.zeros(2, dtype=torch.int64, device=mesh.device)
        self._size = (0, 0, 0)
        self._coef = 0.0
        if routers:
            self._size = (len(routers), routers[0].top_k, routers[0].num_experts)
            self._coef = balance_coef
        self._load = torch.zeros(self._size[2], dtype=torch.int64, device=mesh.device)
        # These are positions.
        self._loaded: Tensor | None = None
        self._balance = torch.zeros((), dtype=torch.float64, device=mesh.device)
        # These are positions, `pull` and the scale.
        self._pull: tuple[Tensor, Tensor, float] | None = None
        self._positions: Tensor | None = None
        self._routes: Tensor | None = None
        for layer, gate in enumerate(routers):
            gate.register_forward_hook(partial(self._routed, layer))

    def of(self, batch: AnyBatch, rows: Sequence[Row]) -> AnyBatch:
        """Returns the micro-batch with what its members were routed to, where that is to be looked at.

        Raises TrainerError where it is of another model.
        """
        members = [rows[i] for i in batch.members]
        if self._replay is RoutingReplay.none or all(row.routes is None for row in members):
            return batch
        layers, active, experts = self._size
        for row in members:
            if row.routes is not None and (
                row.routes.shape[1:] != (layers, active) or _largest_expert(row.routes) >= experts
            ):
                raise TrainerError(
                    f"The engine sent the tokens of trajectory {row.trajectory_id} to experts up to number "
                    f"{_largest_expert(row.routes)}, {row.routes.shape[2]} of each of {row.routes.shape[1]} "
                    "layers; the "
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
        """Replays `routes` of `of` in a forward pass of the policy and the backward pass that belongs to it."""
        self._routes = routes
        try:
            yield
        finally:
            self._routes = None

    @contextmanager
    def counting(self, positions: Tensor | None) -> Iterator[None]:
        """Counts the hidden states at `positions` [trained tokens] of a micro-batch inside of the block."""
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
        """Counts for `pull` inside of the block, which is a pass before the mini-batch's own."""
        if self.balances:
            self._loaded = positions
        else:
            self._loaded = None
        try:
            yield
        finally:
            self._loaded = None

    def pull(self) -> Tensor | None:
        """Returns what an expert's probability at one token adds to the loss, float32 [experts], or None without such a
        loss.

        It is of the passes in `loading` since the last call. The loss is N sum_i f_i P_i over N experts: f_i are
        choices of expert i by token and layer, P_i is its mean probability (Switch Transformer, arXiv:2101.03961,
        equations 4 to 6; over all layers at once, as transformers has it). f has no gradient, so P's is all there is.
        """
        if not self.balances:
            return None
        load = self._mesh.sum(self._load).double()
        self._load.zero_()
        # These are tokens times layers. A mini-batch without tokens would divide by 0.
        routed = (load.sum() / self._size[1]).clamp(min=1.0)
        return (self._coef * self._size[2] * load / routed / routed).float()

    @contextmanager
    def balancing(self, positions: Tensor, pull: Tensor | None, scale: float) -> Iterator[None]:
        """Adds `scale` times the gradient of the loss of `pull` to a backward pass inside of the block."""
        self._pull = None if pull is None else (positions, pull, scale)
        try:
            yield
        finally:
            self._pull = None

    def taken_balance(self) -> Tensor | None:
        """Returns this rank's balancing loss before its coefficient, summed over the updates since the last call."""
        if not self.balances:
            return None
        balance = self._balance / self._coef
        self._balance = torch.zeros_like(self._balance)
        return balance

    def taken(self) -> "Tensor | None":
        """Returns tokens [layers, experts] since the last call, or None of a dense model."""
        if not self._tokens:
            return None
        tensor = torch.stack(self._tokens)
        for counts in self._tokens:
            counts.zero_()
        return tensor

    def taken_choices(self) -> Tensor:
        """Returns the engine's choices that were compared since the last call, and those that our routers would not
        have made.

        The tensor is int64 [2].
        """
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
        """Replays and counts a layer's choices; it is a forward hook.

        `output` has logits [tokens, experts], weights and numbers of the chosen ones [tokens, active].
        """
        if not isinstance(output, tuple) or len(output) != 3:
            # The router of a family that is not known here.
            return output
        logits, weights, chosen = output
        if self._routes is not None:
            theirs = self._routes[:, layer].long()
            known = theirs != _UNKNOWN
            theirs = torch.where(known, theirs, chosen)
            if self._positions is not None:
                self._compare(chosen[self._positions], theirs[self._positions], known[self._positions])
            if self._replay is RoutingReplay.replay:
                chosen = theirs
                weights = _router_weights(gate, logits, theirs)
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
        # A pass with a gradient but without positions is a recomputation, which was counted already.
        if self._positions is not None:
            self._balance = self._balance + loss.detach().double()
        pulled: Tensor = _WithLoss.apply(weights, loss * scale)  # type: ignore[no-untyped-call]
        return pulled

    def _compare(self, ours: Tensor, theirs: Tensor, known: Tensor) -> None:
        # The two choices are compared as sets: the order of a token's experts changes nothing that is computed.
        missed = (theirs[:, :, None] != ours[:, None, :]).all(-1) & known
        self._choices += torch.stack([known.sum(), missed.sum()])


class _WithLoss(torch.autograd.Function):
    """Returns `values` as they are; in the backward pass the gradient of `loss` joins theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], torch.ones_like(ctx.saved_tensors[0])


def _router_weights(gate: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """Returns weights as transformers' router makes them of its own choice."""
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(1, chosen)
    if gate.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype)


def _largest_expert(routes: Routes) -> int:
    """Returns the highest number of an expert; -1 where none is known."""
    known = routes[routes != unknown_route(routes.dtype)]
    if known.size:
        return int(known.max())
    return -1


def load_max(tokens: Tensor) -> float | None:
    """Returns the most used expert's tokens over an even share, mean over layers: 1 is even.

    `tokens` is [layers, experts].
    """
    total = tokens.sum(dim=1)
    if not int(total.min()):
        return None
    return float((tokens.max(dim=1).values * tokens.shape[1] / total).mean())


def unused_rate(tokens: Tensor) -> float | None:
    """Returns the share of all layers' experts that no token was sent to."""
    if int(tokens.sum()):
        return float((tokens == 0).double().mean())
    return None


def load_entropy(tokens: Tensor) -> float | None:
    """Returns the entropy of a layer's tokens over its experts, as a share of the largest (1 is even), mean over
    layers.
    """
    total = tokens.sum(dim=1, keepdim=True)
    if not int(total.min()) or tokens.shape[1] < 2:
        return None
    entropies = torch.special.entr(tokens.double() / total).sum(dim=1)
    return float((entropies / np.log(tokens.shape[1])).mean())
