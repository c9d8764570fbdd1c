"""Attention over the slot cache: single tokens of many slots at once, and blocks of one prompt.

Invariants:
- A row's result has the same bits whatever is computed with it: padding adds exact zeros (lengths are rounded up to
  `BLOCK_TOKENS`, groups of query heads to a multiple of four), and a prompt's query blocks end at absolute multiples
  of `BLOCK_TOKENS`.
- Single tokens are batched over ranges of neighbouring slots without copying keys; a range is closed when its padding
  would cost more than one more call.
- Shapes: query [rows, heads, head_dim]; keys and values [slots, kv_heads, tokens, head_dim].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from swe_rl.engine.embedded.layers import DecoderShape
from swe_rl.engine.embedded.slot_cache import BLOCK_TOKENS

# Padding adds exact zeros at any multiple of the vector width; 32 leaves less of it than whole blocks.
_ROUND_TOKENS = 32
# Measured for heads of 32: a call of its own costs as much as attending over about this many tokens.
_CALL_COST_TOKENS = 512


@dataclass(frozen=True, slots=True)
class _Range:
    """Slots `low` .. `high`, read up to `tokens` positions; `bias` [slots * kv_heads, 1, tokens] hides the rest."""

    low: int
    high: int
    tokens: int
    bias: torch.Tensor


class TokenAttention:
    """One query token per slot, at the end of what the slot holds. Built once per step, used by every layer."""

    def __init__(self, slots: Sequence[int], lengths: Sequence[int], num_slots: int, shape: DecoderShape) -> None:
        self._shape = shape
        self._where = torch.tensor(slots)
        padding = -shape.group % 4 if shape.group > 2 else 0
        size = (num_slots, shape.kv_heads, shape.group + padding, shape.head_dim)
        self._query = torch.zeros(size)
        self._result = torch.empty(size)
        self._ranges = list(self._plan(dict(zip(slots, lengths, strict=True))))

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[rows, heads * head_dim]; the slots' keys and values must already hold the tokens' own."""
        rows, group = query.shape[0], self._shape.group
        scaled = (query * self._shape.head_dim**-0.5).view(rows, self._shape.kv_heads, group, -1)
        self._query[:, :, :group].index_copy_(0, self._where, scaled)
        for part in self._ranges:
            chosen = slice(part.low, part.high)
            seen_keys = keys[chosen, :, : part.tokens].flatten(0, 1)
            seen_values = values[chosen, :, : part.tokens].flatten(0, 1)
            weights = torch.bmm(self._query[chosen].flatten(0, 1), seen_keys.transpose(1, 2)).add_(part.bias)
            torch.bmm(weights.softmax(-1), seen_values, out=self._result[chosen].flatten(0, 1))
        return self._result.index_select(0, self._where)[:, :, :group].reshape(rows, -1)

    def _plan(self, lengths: dict[int, int]) -> Iterator[_Range]:
        """Greedy: a slot joins the range before it where that is cheaper than a call of its own."""
        ordered = sorted(lengths)
        low = high = ordered[0]
        tokens = _rounded(lengths[low])
        for slot in ordered[1:]:
            own = _rounded(lengths[slot])
            joined = max(tokens, own) * (slot + 1 - low)
            if joined <= tokens * (high + 1 - low) + own + _CALL_COST_TOKENS:
                high, tokens = slot, max(tokens, own)
            else:
                yield self._range(low, high + 1, tokens, lengths)
                low, high, tokens = slot, slot, own
        yield self._range(low, high + 1, tokens, lengths)

    def _range(self, low: int, high: int, tokens: int, lengths: dict[int, int]) -> _Range:
        # A slot in between that takes no part attends over one position; nobody reads its result.
        used = torch.tensor([lengths.get(slot, 1) for slot in range(low, high)])
        hidden = torch.arange(tokens) >= used[:, None]
        bias = torch.zeros(high - low, tokens).masked_fill_(hidden, float("-inf"))
        return _Range(low, high, tokens, bias.repeat_interleave(self._shape.kv_heads, 0)[:, None])


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND_TOKENS) * _ROUND_TOKENS


class PromptAttention:
    """Causal attention of consecutive prompt tokens of one slot."""

    def __init__(self, max_tokens: int, shape: DecoderShape) -> None:
        self._shape = shape
        # All of the past, then the causal triangle of one query block, each row once per query head of a group.
        triangle = torch.full((BLOCK_TOKENS, BLOCK_TOKENS), float("-inf")).triu(1).repeat_interleave(shape.group, 0)
        self._mask = torch.cat([torch.zeros(BLOCK_TOKENS * shape.group, max_tokens), triangle], dim=1)
        self._past = max_tokens

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, out: torch.Tensor
    ) -> None:
        """Writes `out` [rows, heads, head_dim]; `query` row 0 is at position `start` of `keys`."""
        done, total = 0, query.shape[0]
        while done < total:
            position = start + done
            rows = min(total - done, BLOCK_TOKENS - position % BLOCK_TOKENS)
            chosen = slice(done, done + rows)
            self._block(query[chosen], keys, values, position, out[chosen])
            done += rows

    def _block(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, out: torch.Tensor
    ) -> None:
        rows, shape = query.shape[0], self._shape
        split = (rows, shape.kv_heads, shape.group, shape.head_dim)
        folded = query.reshape(split).transpose(0, 1).reshape(1, shape.kv_heads, -1, shape.head_dim)
        end, first = position + rows, self._past - position
        mask = self._mask[: rows * shape.group, first : first + end]
        attended = functional.scaled_dot_product_attention(folded, keys[None, :, :end], values[None, :, :end], mask)
        unfolded = attended.view(shape.kv_heads, rows, shape.group, shape.head_dim).transpose(0, 1)
        out.view(split).copy_(unfolded)
