import random

import pytest
import torch
from torch.nn import functional

from swe_rl.engine.embedded.layers import DecoderShape
from swe_rl.engine.embedded.model import PromptAttention, TokenAttention

SHAPES = [DecoderShape(6, 2, 32, 100, 1e-6), DecoderShape(4, 4, 16, 100, 1e-6), DecoderShape(5, 1, 8, 100, 1e-6)]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape.heads}x{shape.kv_heads}")
def shape(request):
    return request.param


@pytest.fixture
def store(shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(20, shape.kv_heads, 512, shape.head_dim, generator=generator) for _ in range(2)]


def reference(query, keys, values, length):
    """One query token [heads, head_dim] over `length` positions."""
    out = functional.scaled_dot_product_attention(
        query[None, :, None], keys[None, :, :length], values[None, :, :length], enable_gqa=True
    )
    return out.flatten()


@pytest.mark.parametrize("seed", range(4))
def test_scattered_slots_of_any_length_attend_over_their_own_tokens(shape, store, seed):
    rng = random.Random(seed)
    slots = rng.sample(range(20), rng.randrange(1, 20))
    lengths = [rng.choice((1, 2, 63, 64, 65, rng.randrange(1, 513))) for _ in slots]
    query = torch.randn(len(slots), shape.heads, shape.head_dim)
    result = TokenAttention(slots, lengths, 20, shape)(query, *store)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        expected = reference(query[row], store[0][slot], store[1][slot], length)
        torch.testing.assert_close(result[row], expected, atol=2e-6, rtol=1e-5)
        alone = TokenAttention([slot], [length], 20, shape)(query[row : row + 1], *store)
        assert torch.equal(alone[0], result[row])


@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 64), (0, 200), (37, 100), (64, 65), (130, 3)])
def test_prompt_blocks_are_causal(shape, store, start, rows):
    query = torch.randn(rows, shape.heads, shape.head_dim)
    out = torch.empty(rows, shape.heads, shape.head_dim)
    PromptAttention(512, shape)(query, store[0][3], store[1][3], start, out)
    for row in range(rows):
        expected = reference(query[row], store[0][3], store[1][3], start + row + 1)
        torch.testing.assert_close(out[row].flatten(), expected, atol=2e-6, rtol=1e-5)
