"""Computes a mixture's experts on many ranks: tokens go to the rank that has their expert, and come back.

The source is GShard, arXiv:2006.16668, section 3.3; products of all experts at once are as in MegaBlocks,
arXiv:2211.15841.

Invariants:
- With `ep` ranks in a group, rank i of it has the i-th of `ep` equal parts of each layer's experts. Ranks of a replica
  that have the same experts share them out in rows, as FSDP2 does; everything else is shared out over all its ranks.
- Nothing is dropped: each token reaches each of its experts, however uneven that is.
- A token's result is the weighted sum over its experts, in the router's order: who computed it does not matter.
- The gradient of an expert is the sum over the tokens of all ranks, once, as that of any other weight is.
- Names, and shapes as a whole, stay those of transformers: whoever reads weights learns nothing of groups.
- Each rank takes part in each exchange, also where no token comes to it: its experts have a gradient of zeros then.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from swe_rl.trainer.sharded.mesh import Mesh, local_shard
from swe_rl.trainer.trainer import MeshError

NAME = "swe_rl_experts"


def use_sharded_experts(causal_lm: nn.Module, mesh: Mesh, *, compiled: bool = False) -> list[Any]:
    """Makes a transformers model compute its experts here, and leaves this rank its own of them, in place.

    With `compiled` torch compiles what is computed element by element, each in one kernel. Returns the layers' experts
    where they are spread over more than one rank: each is to be sharded over `mesh.expert_shards`. A model without
    experts stays as it is. Raises MeshError.
    """
    layers: list[Any] = [module.experts for module in causal_lm.modules() if hasattr(module, "experts")]
    if not layers:
        return []
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts_forward)
    gated, summed = _by_element(layers[0].act_fn, compiled)
    for experts in layers:
        experts.config._experts_implementation = NAME
        experts.gated = gated
        experts.summed = summed
        experts.expert_group = mesh.ep_group
        experts.expert_ranks = mesh.ep
        if mesh.ep > 1:
            _keep_own(experts, mesh)
    if mesh.ep > 1:
        return layers
    return []


def _by_element(activation: Callable[[Tensor], Tensor], compiled: bool) -> list[Callable[..., Tensor]]:
    """Returns the two functions that work element by element.

    The first maps [rows, 2 * width] and [rows] to [rows, width]: the activated gate times the other half, times what a
    row counts. The second maps [rows, hidden] and [tokens, active] to [tokens, hidden]: the sum of a token's rows,
    added in float32. All layers have the same two, so that each is compiled once.
    """

    def gated(gate_up: Tensor, counts: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return (activation(gate) * up * counts[:, None]).to(gate_up.dtype)

    def summed(rows: Tensor, places: Tensor) -> Tensor:
        if not compiled:
            return rows[places].sum(dim=1)
        total = rows[places[:, 0]].float()
        # Compiled, `sum` takes four times as long.
        for copy in range(1, places.shape[1]):
            total = total + rows[places[:, copy]]
        return total.to(rows.dtype)

    functions: list[Callable[..., Tensor]] = [gated, summed]
    if compiled:
        return [_compile_by_width(function) for function in functions]
    return functions


def _compile_by_width(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiles a function for any number of rows, but only one width.

    Kernels for any width take 2.7 times as long on an H200.
    """
    kernels = torch.compile(function, dynamic=False)

    def call(*tensors: Tensor) -> Tensor:
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return kernels(*tensors)

    return call


def _keep_own(experts: Any, mesh: Mesh) -> None:
    from torch.distributed.tensor import DTensor, Shard

    if experts.num_experts % mesh.ep:
        raise MeshError(
            f"layout.expert_parallel={mesh.ep} cannot share out the {experts.num_experts} experts of a layer: choose a "
            "divisor of model.num_experts."
        )
    share = experts.num_experts // mesh.ep
    for name, parameter in list(experts.named_parameters(recurse=False)):
        rows = parameter.detach()[mesh.ep_rank * share :][:share].clone()
        spread = DTensor.from_local(rows, mesh.expert_ranks, [Shard(0)], run_check=False)
        setattr(experts, name, nn.Parameter(spread, requires_grad=parameter.requires_grad))


def _experts_forward(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Computes experts by transformers' interface: [tokens, hidden] and [tokens, active] twice -> [tokens, hidden].

    `chosen` are numbers of experts, `weights` what each counts.
    """
    active = chosen.shape[1]
    # The smaller the type, the faster is the sort.
    by_expert, order = chosen.flatten().to(torch.int16).sort(stable=True)
    back = _inverse_order(order)
    ends = _expert_ends(by_expert, experts.num_experts)
    sent: Tensor = _Spread.apply(hidden, order, back, active, experts.summed)  # type: ignore[no-untyped-call]
    counts: Tensor = _Reordered.apply(weights.flatten(), order, back)  # type: ignore[no-untyped-call]
    if experts.expert_ranks > 1:
        rows = _compute_remotely(experts, sent, counts, ends)
    else:
        rows = _apply_experts(experts, sent, counts, ends)
    result: Tensor = _Gathered.apply(rows, order, back, active, experts.summed)  # type: ignore[no-untyped-call]
    return result


def _compute_remotely(experts: Any, sent: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
    """Computes what `_apply_experts` does, on the ranks that have the experts. `sent` is ordered by expert, of all
    experts.
    """
    group = experts.expert_group
    ranks = experts.expert_ranks
    share = experts.num_experts // ranks
    ours = ends.diff(prepend=ends.new_zeros(1)).long()
    # [ranks * share]: the tokens of each rank for each expert of this one.
    theirs = torch.empty_like(ours)
    dist.all_to_all_single(theirs, ours, group=group)
    # One copy to the host brings both lists of sizes; each such copy waits for the GPU.
    sums = torch.stack([ours.view(ranks, share).sum(1), theirs.view(ranks, share).sum(1)]).tolist()
    to_them, from_them = sums
    numbers = torch.arange(share, device=sent.device, dtype=torch.int16).repeat(ranks)
    by_expert, order = numbers.repeat_interleave(theirs, output_size=sum(from_them)).sort(stable=True)
    back = _inverse_order(order)

    def ordered(values: Tensor) -> Tensor:
        arrived = _ExchangeRows.apply(values, group, to_them, from_them)  # type: ignore[no-untyped-call]
        result: Tensor = _Reordered.apply(arrived, order, back)  # type: ignore[no-untyped-call]
        return result

    computed = _apply_experts(experts, ordered(sent), ordered(counts), _expert_ends(by_expert, share))
    returned: Tensor = _Reordered.apply(computed, back, order)  # type: ignore[no-untyped-call]
    result: Tensor = _ExchangeRows.apply(returned, group, from_them, to_them)  # type: ignore[no-untyped-call]
    return result


def _apply_experts(experts: Any, rows: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
    """Sends each row through its expert, times what it counts. Rows [rows, hidden] are ordered by expert.

    The rows of the i-th expert end at `ends[i]`. What a row counts is multiplied in before the second product, where a
    row is narrow. So the backward pass does not need the result of that product, and recomputation leaves it out.
    """
    gate_up, down = (_own_experts(weight, experts.expert_ranks) for weight in (experts.gate_up_proj, experts.down_proj))
    return _grouped_products(experts.gated(_grouped_products(rows, gate_up, ends), counts), down, ends)


def _grouped_products(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Returns [rows, outputs] for [rows, inputs] and [experts, outputs, inputs]; rows are ordered as for
    `_apply_experts`.
    """
    # No kernel takes zero rows, and the weights still need a gradient.
    if not len(rows):
        return rows @ weights[0].T
    if rows.is_cuda:
        return functional.grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([part @ weight.T for part, weight in zip(rows.split(sizes), weights, strict=True)])


def _own_experts(weight: Tensor, ranks: int) -> Tensor:
    """Returns this rank's experts, gathered from those that have the same by now.

    Their tokens come from the ranks of a whole group, but FSDP2 takes the mean over those that have the same.
    """
    if ranks == 1:
        return weight
    scaled: Tensor = _ScaledGradient.apply(local_shard(weight), 1.0 / ranks)  # type: ignore[no-untyped-call]
    return scaled


def _expert_ends(by_expert: Tensor, experts: int) -> Tensor:
    """Returns where each expert's part of a sorted list ends, int32 [experts]."""
    return torch.searchsorted(by_expert, torch.arange(experts, device=by_expert.device), right=True, out_int32=True)


def _inverse_order(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


class _Spread(torch.autograd.Function):
    """Copies each row for each of its experts, in the order of the experts; it is deterministic, unlike torch's own."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, order: Tensor, back: Tensor, active: int, summed: Any) -> Tensor:
        ctx.save_for_backward(back)
        ctx.arguments = active, summed
        return hidden[order // active]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (back,) = ctx.saved_tensors
        active, summed = ctx.arguments
        return summed(gradients[0], back.view(-1, active)), None, None, None, None


class _Gathered(torch.autograd.Function):
    """Sums a token's copies, in the router's order: it is the transpose of `_Spread`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor, active: int, summed: Any) -> Tensor:
        ctx.save_for_backward(order)
        ctx.active = active
        result: Tensor = summed(rows, back.view(-1, active))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (order,) = ctx.saved_tensors
        return gradients[0][order // ctx.active], None, None, None, None


class _Reordered(torch.autograd.Function):
    """Puts rows into another order; `inverse` is that of the order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None


class _ExchangeRows(torch.autograd.Function):
    """Sends the next `sent[i]` rows to rank i of the group; `received[i]` come from it. Its transpose sends back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, sent: list[int], received: list[int]) -> Tensor:
        ctx.arguments = group, received, sent
        return _exchange_rows(rows, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchange_rows(gradients[0], *ctx.arguments), None, None, None


def _exchange_rows(rows: Tensor, group: Any, sent: list[int], received: list[int]) -> Tensor:
    result = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result
