"""The module is sequence parallelism: it exchanges heads for tokens around attention.

The source is DeepSpeed-Ulysses, arXiv:2309.14509, section 3.

Invariants:
- Before the exchange a rank holds all heads of its slice of the tokens, after it all tokens of its share of the heads;
  attention itself knows nothing of it.
- There is one exchange there (queries, keys and values together) and one back, each way.
- Where there are more ranks than key-value heads, these are repeated so that every rank gets the one that its query
  heads use; the gradient of a repeated head is the sum over its copies.
- With one rank nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swe_rl.trainer.sharded.attention import Kernel
from swe_rl.trainer.sharded.packing import Segments
from swe_rl.trainer.trainer import MeshError

NAME = "swe_rl_packed"


@dataclass(frozen=True, slots=True)
class Packed:
    """All that an attention layer of one forward pass needs to know."""

    segments: Segments
    kernel: Kernel
    # This is the sequence-parallel process group.
    group: Any = None
    ranks: int = 1


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raises MeshError where the heads cannot be shared out."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise MeshError(
            f"layout.sequence_parallel={ranks} cannot share out model.num_heads={heads} and "
            f"model.num_kv_heads={kv_heads}: it must divide the first, and divide the second or be a multiple of it."
        )


def heads_per_rank(heads: int, kv_heads: int, ranks: int) -> tuple[int, int]:
    """Returns the numbers of query and key-value heads of one rank after the exchange."""
    return heads // ranks, max(1, kv_heads // ranks)


def attend_packed(packed: Packed, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Returns attention of [slice, heads, head_dim] queries and [slice, kv_heads, head_dim] keys and values."""
    if packed.ranks == 1:
        return packed.kernel(query, keys, values, packed.segments, scale)
    ranks = packed.ranks
    heads = query.shape[1]
    copies = max(1, ranks // keys.shape[1])
    if copies > 1:
        keys = keys.repeat_interleave(copies, 1)
        values = values.repeat_interleave(copies, 1)
    own = heads // ranks, keys.shape[1] // ranks
    # Rank r's share of each kind lies side by side, so that one exchange moves all three.
    shares = [x.unflatten(1, (ranks, -1)) for x in (query, keys, values)]
    exchanged: Tensor = _ExchangeParts.apply(torch.cat(shares, 2).transpose(0, 1), packed.group)  # type: ignore[no-untyped-call]
    all_tokens = exchanged.flatten(0, 1)
    q, k, v = all_tokens.split((own[0], own[1], own[1]), 1)
    out = packed.kernel(q, k, v, packed.segments, scale)
    back: Tensor = _ExchangeParts.apply(out.unflatten(0, (ranks, -1)), packed.group)  # type: ignore[no-untyped-call]
    return back.transpose(0, 1).flatten(1, 2)


class _ExchangeParts(torch.autograd.Function):
    """Exchanges [ranks, ...]: part i goes to rank i, what came from rank i becomes part i. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchange_parts(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchange_parts(gradients[0], ctx.group), None


def _exchange_parts(parts: Tensor, group: Any) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends by transformers' interface: [1, heads, slice, head_dim] in, [1, slice, heads, head_dim] out."""
    if attention_mask is not None or sliding_window is not None:
        raise MeshError("Packed training computes full causal attention only; this model has masks or windows.")
    if scaling is None:
        scale = query.shape[-1] ** -0.5
    else:
        scale = scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = attend_packed(packed, q, k, v, scale)
    return out.unsqueeze(0), None


def use_packed_attention(model: Any) -> None:
    """Makes a transformers model call `attend_packed`; its forward pass then needs the keyword `packed`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention_forward)
    model.config._attn_implementation = NAME
