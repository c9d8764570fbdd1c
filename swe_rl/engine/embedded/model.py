"""Computes the decoder's forward pass over a slot cache, from the weights of a transformers model.

Invariants:
- A token's result does not depend on the other rows of a forward pass: projections run over at least `ROW_MULTIPLE`
  rows (with fewer, the matrix library sums in another order); attention is `TokenAttention`'s and `PromptAttention`'s.
- Prompt tokens but the last skip all of the last layer that does not make keys and values: nothing reads it.
- Weights are read from the transformers model once per `pack`.
- A row's result has the same bits whatever is computed with it, and however a prompt is cut into passes: the matrix
  library sums in an order that depends on the shapes, so shapes depend on a token's position alone. A prompt's queries
  are blocks of `_BLOCK_TOKENS` at absolute multiples of it, and a single token's values are summed in chunks of
  `CHUNK_TOKENS`. Padding adds exact zeros.
- Single tokens are batched over ranges of neighbouring slots without copying keys; a range is closed when its padding
  would cost more than one more call.
- Shapes are query [rows, heads, head_dim]; keys and values [slots, kv_heads, tokens, head_dim].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy.typing as npt
import torch
from torch.nn import functional

from swe_rl.engine.embedded.decoder import PrefillSpan
from swe_rl.engine.embedded.layers import (
    ROW_MULTIPLE,
    DecoderShape,
    PackedExperts,
    PackedLayer,
    PackedMlp,
    pack_layer,
    pad_rows,
    require_supported,
    rotary_tables,
    shape_of,
)
from swe_rl.engine.embedded.slot_cache import CHUNK_TOKENS, CacheShape, SlotCache
from swe_rl.model.experts import unknown_route

# A block has this many of a prompt's queries; in one that begins or ends in the middle, the rest is padding.
_BLOCK_TOKENS = 32
# A call of its own costs as much as attending over about this many tokens, measured for heads of 32.
_CALL_COST_TOKENS = 512


@dataclass(frozen=True, slots=True)
class _Range:
    """The slots `low` .. `high`, read up to `tokens` positions; `bias` [slots * kv_heads, 1, tokens] hides the rest."""

    low: int
    high: int
    tokens: int
    bias: torch.Tensor


class TokenAttention:
    """The attention of one query token per slot, at the end of what the slot holds.

    It is built once per step, and used by every layer.
    """

    def __init__(self, slots: Sequence[int], lengths: Sequence[int], num_slots: int, shape: DecoderShape) -> None:
        self._shape = shape
        self._where = torch.tensor(slots)
        padding = 0
        if shape.group > 2:
            padding = -shape.group % 4
        size = (num_slots, shape.kv_heads, shape.group + padding, shape.head_dim)
        self._query = torch.zeros(size)
        self._result = torch.empty(size)
        self._ranges = list(self._plan(dict(zip(slots, lengths, strict=True))))

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns [rows, heads * head_dim]; the slots' keys and values must already hold the tokens' own."""
        rows = query.shape[0]
        group = self._shape.group
        scaled = (query * self._shape.head_dim**-0.5).view(rows, self._shape.kv_heads, group, -1)
        self._query[:, :, :group].index_copy_(0, self._where, scaled)
        for part in self._ranges:
            chosen = slice(part.low, part.high)
            seen_keys = keys[chosen, :, : part.tokens].flatten(0, 1)
            seen_values = values[chosen, :, : part.tokens].flatten(0, 1)
            scores = torch.bmm(self._query[chosen].flatten(0, 1), seen_keys.transpose(1, 2)).add_(part.bias)
            weights = scores.softmax(-1)
            result = self._result[chosen].flatten(0, 1)
            torch.bmm(weights[:, :, :CHUNK_TOKENS], seen_values[:, :CHUNK_TOKENS], out=result)
            # One product over all tokens would be split by the library at places that depend on how many there are, and
            # so on the longest context of the batch (measured: 224 tokens, and the same padded to 256 or more).
            for first in range(CHUNK_TOKENS, part.tokens, CHUNK_TOKENS):
                chunk = slice(first, first + CHUNK_TOKENS)
                result.baddbmm_(weights[:, :, chunk], seen_values[:, chunk])
        return self._result.index_select(0, self._where)[:, :, :group].reshape(rows, -1)

    def _plan(self, lengths: dict[int, int]) -> Iterator[_Range]:
        """Yields ranges of slots. It is greedy: a slot joins the range before it where that is cheaper than its own
        call.
        """
        ordered = sorted(lengths)
        low = high = ordered[0]
        tokens = _round_up(lengths[low])
        for slot in ordered[1:]:
            rounded_tokens = _round_up(lengths[slot])
            joined = max(tokens, rounded_tokens) * (slot + 1 - low)
            if joined <= tokens * (high + 1 - low) + rounded_tokens + _CALL_COST_TOKENS:
                high = slot
                tokens = max(tokens, rounded_tokens)
            else:
                yield self._range(low, high + 1, tokens, lengths)
                low = slot
                high = slot
                tokens = rounded_tokens
        yield self._range(low, high + 1, tokens, lengths)

    def _range(self, low: int, high: int, tokens: int, lengths: dict[int, int]) -> _Range:
        # A slot in between that takes no part attends over one position; nobody reads its result.
        used = torch.tensor([lengths.get(slot, 1) for slot in range(low, high)])
        hidden = torch.arange(tokens) >= used[:, None]
        bias = torch.zeros(high - low, tokens).masked_fill_(hidden, float("-inf"))
        return _Range(low, high, tokens, bias.repeat_interleave(self._shape.kv_heads, 0)[:, None])


def _round_up(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS) * CHUNK_TOKENS


class PromptAttention:
    """The causal attention of consecutive prompt tokens of one slot."""

    def __init__(self, max_tokens: int, shape: DecoderShape) -> None:
        self._shape = shape
        # The mask has all of the past, then the causal triangle of one query block, each row once per query head of a
        # group.
        triangle = torch.full((_BLOCK_TOKENS, _BLOCK_TOKENS), float("-inf")).triu(1).repeat_interleave(shape.group, 0)
        self._mask = torch.cat([torch.zeros(_BLOCK_TOKENS * shape.group, max_tokens), triangle], dim=1)
        self._past = max_tokens

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, out: torch.Tensor
    ) -> None:
        """Writes `out` [rows, heads, head_dim]; `query` row 0 is at position `start` of `keys`."""
        total = query.shape[0]
        # These rows of the first block came in an earlier pass.
        before = start % _BLOCK_TOKENS
        for done in range(-before, total, _BLOCK_TOKENS):
            rows = slice(max(0, done), min(total, done + _BLOCK_TOKENS))
            padding = (0, 0, 0, 0, rows.start - done, done + _BLOCK_TOKENS - rows.stop)
            if any(padding):
                block = functional.pad(query[rows], padding)
            else:
                block = query[rows]
            attended = self._block(block, keys, values, start + done)
            out[rows].copy_(attended[rows.start - done : rows.stop - done])

    def _block(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int) -> torch.Tensor:
        """Returns the attention of a whole block of queries from `position` on.

        Its shape is [block, kv_heads * group, head_dim]; it is not contiguous.
        """
        shape = self._shape
        split = (_BLOCK_TOKENS, shape.kv_heads, shape.group, shape.head_dim)
        folded = query.reshape(split).transpose(0, 1).reshape(1, shape.kv_heads, -1, shape.head_dim)
        end = position + _BLOCK_TOKENS
        first = self._past - position
        mask = self._mask[:, first : first + end]
        attended = functional.scaled_dot_product_attention(folded, keys[None, :, :end], values[None, :, :end], mask)
        unfolded = attended.view(shape.kv_heads, _BLOCK_TOKENS, shape.group, shape.head_dim).transpose(0, 1)
        return unfolded.reshape(_BLOCK_TOKENS, shape.heads, shape.head_dim)


class PackedDecoder:
    """Computes logits of new tokens, given a `SlotCache`. It is not thread-safe; call it under
    `torch.inference_mode`.
    """

    cuts_prompts = True

    def __init__(self, model: Any, max_model_len: int, pad_token_id: int, *, routes: bool = False) -> None:
        """Reads the model. With `routes` the cache keeps which experts of a mixture each position went to.

        Raises EngineError when the architecture is not one that this forward pass computes.
        """
        require_supported(model, max_model_len)
        self._keeps_routes = routes
        self.shape = shape_of(model.config)
        self.vocab_size = self.shape.vocab_size
        self._model = model
        self._pad_token_id = pad_token_id
        self._attend_prompt = PromptAttention(max_model_len, self.shape)
        with torch.no_grad():
            self._cos, self._sin = rotary_tables(model, max_model_len)
        self.pack()

    def make_cache(self, slots: int, max_tokens: int) -> SlotCache:
        return SlotCache(self.cache_shape(slots, max_tokens))

    def cache_shape(self, slots: int, max_tokens: int) -> CacheShape:
        mixtures = [layer.mlp for layer in self._layers if isinstance(layer.mlp, PackedExperts)]
        routed = None
        if self._keeps_routes and mixtures:
            routed = (len(mixtures), mixtures[0].active, mixtures[0].router.shape[0])
        return CacheShape(slots, max_tokens, len(self._layers), self.shape.kv_heads, self.shape.head_dim, routed)

    def pack(self) -> None:
        """Reads the model's weights again; call it after they changed."""
        with torch.no_grad():
            base = self._model.model
            self._embedding = base.embed_tokens.weight
            self._final_norm = base.norm.weight
            self._lm_head = self._model.lm_head.weight
            self._layers = [pack_layer(layer, self.shape) for layer in base.layers]

    def prefill(self, spans: Sequence[PrefillSpan], cache: SlotCache) -> torch.Tensor:
        """Writes the spans' keys and values. Returns logits [spans, vocab] after the last token of each."""
        hidden = self._embed([token for span in spans for token in span.ids])
        rotary = self._rotary([position for span in spans for position in range(span.start, span.end)])
        ends = list(accumulate(len(span.ids) for span in spans))
        last_rows = torch.tensor(ends) - 1
        attend_last = TokenAttention(
            [span.slot for span in spans], [span.end for span in spans], cache.shape.slots, self.shape
        )
        routed: list[torch.Tensor] = []
        for index, (layer, keys, values) in enumerate(zip(self._layers, cache.keys, cache.values, strict=True)):
            qkv = self._project(layer, hidden, rotary)
            self._write_spans(qkv, spans, ends, keys, values)
            if index == len(self._layers) - 1:
                hidden = pad_rows(hidden[last_rows])
                attended = attend_last(qkv[last_rows, : self.shape.heads], keys, values)
            else:
                attended = self._attend_spans(qkv, spans, ends, keys, values)
            routed += self._finish_layer(layer, hidden, attended)
        if cache.routes is not None:
            self._keep_prefilled(routed, spans, ends, cache.routes)
        return self._logits(hidden)[: len(spans)]

    def decode(
        self, slots: Sequence[int], positions: Sequence[int], ids: Sequence[int], cache: SlotCache
    ) -> torch.Tensor:
        """Writes the key and value of one token per slot at its position. Returns logits [slots, vocab]."""
        rows = len(slots)
        heads = self.shape.heads
        kv_heads = self.shape.kv_heads
        head_dim = self.shape.head_dim
        hidden = self._embed(ids)
        rotary = self._rotary(positions)
        attend = TokenAttention(slots, [position + 1 for position in positions], cache.shape.slots, self.shape)
        flat = cache.flat_rows(slots, positions)
        routed: list[torch.Tensor] = []
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            qkv = self._project(layer, hidden, rotary)
            keys.view(-1, head_dim).index_copy_(0, flat, qkv[:rows, heads : heads + kv_heads].reshape(-1, head_dim))
            values.view(-1, head_dim).index_copy_(0, flat, qkv[:rows, heads + kv_heads :].reshape(-1, head_dim))
            routed += self._finish_layer(layer, hidden, attend(qkv[:rows, :heads], keys, values))
        if cache.routes is not None:
            for number, chosen in enumerate(routed):
                cache.routes[slots, positions, number] = chosen[:rows].numpy()
        return self._logits(hidden)[:rows]

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        padding = [self._pad_token_id] * (-len(ids) % ROW_MULTIPLE)
        return functional.embedding(torch.tensor([*ids, *padding]), self._embedding)

    def _rotary(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.tensor([*positions, *[0] * (-len(positions) % ROW_MULTIPLE)])
        return self._cos[at], self._sin[at]

    def _project(
        self, layer: PackedLayer, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Returns queries, keys (both normalised and rotated) and values: [rows, heads + 2 * kv_heads, head_dim]."""
        head_dim = self.shape.head_dim
        eps = self.shape.norm_eps
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.input_norm, eps)
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias).view(hidden.shape[0], -1, head_dim)
        rotated = qkv[:, : self.shape.heads + self.shape.kv_heads]
        source = rotated
        if layer.qk_norm is not None:
            source = functional.rms_norm(rotated, (head_dim,), None, eps).mul_(layer.qk_norm)
        turned = source.roll(head_dim // 2, -1).mul_(rotary[1])
        torch.mul(source, rotary[0], out=rotated)
        rotated.add_(turned)
        return qkv

    def _write_spans(
        self,
        qkv: torch.Tensor,
        spans: Sequence[PrefillSpan],
        ends: Sequence[int],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        heads = self.shape.heads
        kv_heads = self.shape.kv_heads
        for span, end in zip(spans, ends, strict=True):
            part = qkv[end - len(span.ids) : end].transpose(0, 1)
            keys[span.slot, :, span.start : span.end] = part[heads : heads + kv_heads]
            values[span.slot, :, span.start : span.end] = part[heads + kv_heads :]

    def _attend_spans(
        self,
        qkv: torch.Tensor,
        spans: Sequence[PrefillSpan],
        ends: Sequence[int],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        attended = qkv.new_empty(ends[-1], self.shape.heads, self.shape.head_dim)
        for span, end in zip(spans, ends, strict=True):
            rows = slice(end - len(span.ids), end)
            query = qkv[rows, : self.shape.heads]
            self._attend_prompt(query, keys[span.slot], values[span.slot], span.start, attended[rows])
        return attended.view(ends[-1], -1)

    def _finish_layer(
        self, layer: PackedLayer, hidden: torch.Tensor, attended: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Adds output projection and MLP to `hidden` in place; its padding rows have no `attended`.

        Returns the experts of each row, [rows, active], for a layer with experts.
        """
        hidden.add_(functional.linear(pad_rows(attended), layer.output, layer.output_bias))
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.post_norm, self.shape.norm_eps)
        if isinstance(layer.mlp, PackedMlp):
            hidden.add_(layer.mlp(normed))
            return ()
        chosen, weights = layer.mlp.routed(normed)
        hidden.add_(layer.mlp(normed, chosen, weights))
        return (chosen,)

    def _keep_prefilled(
        self,
        routed: Sequence[torch.Tensor],
        spans: Sequence[PrefillSpan],
        ends: Sequence[int],
        routes: npt.NDArray[Any],
    ) -> None:
        """Keeps the routes of a prefill.

        The last layer looked at the spans' last tokens alone: nothing depends on what the others choose there, and what
        an earlier pass has kept of its own last token is forgotten.
        """
        if isinstance(self._layers[-1].mlp, PackedExperts):
            cut = len(routed) - 1
        else:
            cut = len(routed)
        for row, (span, end) in enumerate(zip(spans, ends, strict=True)):
            place = routes[span.slot, span.start : span.end]
            for number, chosen in enumerate(routed[:cut]):
                place[:, number] = chosen[end - len(span.ids) : end].numpy()
            if cut < len(routed):
                routes[span.slot, : span.end, cut] = unknown_route(routes.dtype)
                place[-1, cut] = routed[cut][row].numpy()

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(hidden, hidden.shape[-1:], self._final_norm, self.shape.norm_eps)
        return functional.linear(normed, self._lm_head)
