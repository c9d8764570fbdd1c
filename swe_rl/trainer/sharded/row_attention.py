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

from swe_rl.trainer.sharded.packing import Segments

NAME = "swe_rl_rows"
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
    if softcap is None and sinks is None and window is None:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if sinks is not None:
        # A sink is one more key that takes its share and has no value.
        sink = sinks.reshape(1, -1, 1, 1).expand(1, -1, tokens, 1).to(scores.dtype)
        scores = torch.cat([scores, sink], dim=-1)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return shares[..., :tokens] @ value
