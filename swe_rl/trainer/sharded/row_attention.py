"""Computes whatever softmax attention a family has, row by row of a packed sequence, by transformers' interface.

It is the path of the families that `attention.py` does not know: windows, sinks, capped scores, values of another size
than keys. It asks nothing of a model but that its layers call transformers' attention interface, which is counted.

Invariants:
- No row sees another one, as each is computed alone.
- What a layer asks for and is not known here is noted, and then no packed row is ever trained on. Nothing is raised: an
  exception in the middle of a pass would leave FSDP2 in a state in which later gradients are wrong.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from swe_rl.trainer.sharded.packing import Segments

NAME = "swe_rl_rows"
# A sink needs one number more in queries and keys; fused kernels want a multiple of eight.
_SINK_SIZES = 8
# Queries of a block share one mask. Shorter blocks compute fewer pairs outside of windows, and are more calls.
_BLOCK_TOKENS = 1024
# transformers hands these on to every attention function; they say nothing that a row's own positions do not.
_HARMLESS = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "logits_to_keep"})


class Rows:
    """The rows of one forward pass, and how often attention was asked for in it.

    It is no dataclass: FSDP2 would hand a copy to each layer, and every copy would count for itself.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.calls = 0
        self.problem: str | None = None


def use_row_attention(causal_lm: Any) -> None:
    """Makes a transformers model call `_attend`; its forward pass then needs the keyword `rows`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    causal_lm.config._attn_implementation = NAME


def mixes_by_attention_alone(layers: nn.ModuleList) -> bool:
    """Tells whether nothing in the layers but attention can mix tokens, as far as modules tell: no convolution and no
    state.
    """
    return not any(isinstance(module, nn.Conv1d) or hasattr(module, "A_log") for module in layers.modules())


def has_changing_frequencies(causal_lm: nn.Module) -> bool:
    """Tells whether rotary embeddings of transformers take other frequencies for longer rows than for shorter ones.

    They take the same for all rows of a sequence, so a row would change with what stands beside it.
    """
    kinds: list[str] = []
    for module in causal_lm.modules():
        kind = getattr(module, "rope_type", "")
        if isinstance(kind, dict):
            kinds += kind.values()
        else:
            kinds.append(kind)
    return any(kind == "longrope" or "dynamic" in kind for kind in kinds)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    rows: Rows | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attends by transformers' interface: [1, heads, tokens, size] in, [1, tokens, heads, value size] out."""
    if rows is None:
        # The layer did not hand it on, so this call is not counted, which the caller sees.
        rows = Rows(Segments((query.shape[2],), torch.zeros(0)))
    rows.calls += 1
    unknown = sorted(name for name, given in more.items() if given is not None and name not in _HARMLESS)
    if unknown:
        rows.problem = f"its attention asks for {', '.join(unknown)}"
    if attention_mask is not None or getattr(module, "is_causal", True) is False:
        rows.problem = "its attention has a mask of its own"
    if scaling is None:
        scale = query.shape[-1] ** -0.5
    else:
        scale = scaling
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, 1)
        value = value.repeat_interleave(groups, 1)
    parts = zip(*(tensor.split(rows.segments.lengths, 2) for tensor in (query, key, value)), strict=True)
    try:
        done = [_of_row(q, k, v, scale, sliding_window, softcap, s_aux) for q, k, v in parts]
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        rows.problem = str(error)
        done = [value]
    return torch.cat(done, 2).transpose(1, 2), None


def _of_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Returns one row's attention [1, heads, tokens, value size]."""
    tokens = query.shape[2]
    if window is not None and window >= tokens:
        window = None
    if softcap is not None:
        return _capped(query, key, value, scale, window, softcap, sinks)
    if sinks is not None:
        query, key, value = _with_sink(query, key, value, scale, sinks)
    size = value.shape[-1]
    if window is None:
        done = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    else:
        done = _in_windows(query, key, value, scale, window, has_sink=sinks is not None)
    if sinks is not None:
        done = done[:, :, 1:, : size - _SINK_SIZES]
    return done


def _with_sink(query: Tensor, key: Tensor, value: Tensor, scale: float, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the row with its sink as a key before the first one, so that torch's fused kernels compute it.

    A sink is one more key that takes its share and has no value. Its score is the same for all queries of a head: they
    have a 1 where it alone has something. The first query, which stands beside it, is of no use.
    """
    heads = query.shape[1]
    queries = functional.pad(query, (0, _SINK_SIZES, 1, 0))
    queries[..., query.shape[-1]] = 1.0
    score = (sinks.reshape(1, heads, 1, 1) / scale).to(key.dtype)
    sink = functional.pad(score, (key.shape[-1], _SINK_SIZES - 1))
    keys = torch.cat([sink, functional.pad(key, (0, _SINK_SIZES))], dim=2)
    values = functional.pad(value, (0, _SINK_SIZES, 1, 0))
    return queries, keys, values


def _in_windows(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int, *, has_sink: bool) -> Tensor:
    """Returns attention of each token to the `window` tokens that end with it, and to the row's sink.

    Blocks of queries see the keys of their windows only, so that time and memory grow with the row's length, and not
    with its square.
    """
    tokens = query.shape[2]
    done = []
    for start in range(0, tokens, _BLOCK_TOKENS):
        stop = min(start + _BLOCK_TOKENS, tokens)
        first = max(0, start - window + 1)
        place = torch.arange(first, stop, device=query.device)
        asked = torch.arange(start, stop, device=query.device).unsqueeze(1)
        seen = (place <= asked) & (place > asked - window)
        keys, values = key[:, :, first:stop], value[:, :, first:stop]
        if has_sink and first > 0:
            keys = torch.cat([key[:, :, :1], keys], dim=2)
            values = torch.cat([value[:, :, :1], values], dim=2)
            seen = functional.pad(seen, (1, 0), value=True)
        elif has_sink:
            seen = seen | (place == 0)
        part = query[:, :, start:stop]
        done.append(functional.scaled_dot_product_attention(part, keys, values, attn_mask=seen, scale=scale))
    return torch.cat(done, 2)


def _capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Returns attention with capped scores, which no fused kernel of torch has.

    Blocks of queries are computed again in the backward pass, so that the scores of one block are in memory at a time,
    and not those of all pairs of tokens.
    """
    tokens = query.shape[2]
    done = []
    for start in range(0, tokens, _BLOCK_TOKENS):
        stop = min(start + _BLOCK_TOKENS, tokens)
        first = 0
        if window is not None:
            first = max(0, start - window + 1)
        part, keys, values = query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop]
        offset = start - first
        if torch.is_grad_enabled():
            block = checkpoint(
                _capped_block, part, keys, values, scale, window, softcap, sinks, offset, use_reentrant=False
            )
        else:
            block = _capped_block(part, keys, values, scale, window, softcap, sinks, offset)
        done.append(block)
    return torch.cat(done, 2)


def _capped_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float,
    sinks: Tensor | None,
    offset: int,
) -> Tensor:
    """Returns the attention of queries whose first one stands at the key number `offset`."""
    tokens, num_keys = query.shape[2], key.shape[2]
    seen = torch.ones(tokens, num_keys, dtype=torch.bool, device=query.device).tril(offset)
    if window is not None:
        seen = seen.triu(offset + 1 - window)
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scale / softcap)
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1).expand(1, -1, tokens, 1).to(scores.dtype)
        scores = torch.cat([scores, sink], dim=-1)
    # Families compute the shares in float32, whatever the scores are.
    precise = torch.promote_types(scores.dtype, torch.float32)
    shares = torch.softmax(scores, dim=-1, dtype=precise).to(query.dtype)
    return shares[..., :num_keys] @ value
