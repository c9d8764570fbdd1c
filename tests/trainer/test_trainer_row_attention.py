"""The attention of other families against its plain mathematics, in float64."""

import pytest
import torch

from swe_rl.trainer.sharded import row_attention
from swe_rl.trainer.sharded.row_attention import _of_row


def plain_attention(query, key, value, scale, window, sinks, softcap=None):
    tokens = query.shape[2]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(1, -1, tokens, 1)], -1)
    return torch.softmax(scores, -1)[..., :tokens] @ value


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 7, 20])
@pytest.mark.parametrize("tokens", [1, 6, 16, 53])
def test_windows_sinks_and_caps_are_those_of_the_mathematics(tokens, window, has_sinks, softcap, monkeypatch):
    """Blocks of 16 tokens: a row ends inside of a block, at its border, and after several."""
    monkeypatch.setattr(row_attention, "_BLOCK_TOKENS", 16)
    torch.manual_seed(tokens)
    inputs = [torch.randn(1, 4, tokens, size, dtype=torch.float64, requires_grad=True) for size in (16, 16, 24)]
    sinks = None
    if has_sinks:
        inputs[2] = torch.randn(1, 4, tokens, 16, dtype=torch.float64, requires_grad=True)
        sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    given = [*inputs, *([sinks] if has_sinks else [])]
    got = _of_row(*inputs, 0.25, window, softcap, sinks)
    expected = plain_attention(*inputs, 0.25, window, sinks, softcap)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(expected)
    for mine, reference in zip(
        torch.autograd.grad((got * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def test_memory_of_a_window_grows_with_the_row_and_not_with_its_square(monkeypatch):
    """No mask of a block has more entries than the block has queries and seen keys."""
    masks = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def noting(*inputs, **options):
        masks.append(options["attn_mask"].numel())
        return plain(*inputs, **options)

    monkeypatch.setattr(row_attention.functional, "scaled_dot_product_attention", noting)
    row = torch.zeros(1, 1, 4096, 8)
    _of_row(row, row, row, 1.0, 128, None, torch.zeros(1))
    assert len(masks) == 5 and max(masks) <= 1024 * (1024 + 128)


def kept_bytes(tokens, window):
    """What capped attention of a row keeps for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = [torch.zeros(1, 2, tokens, 8, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        done = _of_row(*inputs, 1.0, window, 30.0, None)
    done.sum().backward()
    assert inputs[0].grad is not None
    return sum(kept.values())


@pytest.mark.parametrize("window", [None, 64])
def test_memory_of_capped_scores_grows_with_the_row_and_not_with_its_square(window, monkeypatch):
    monkeypatch.setattr(row_attention, "_BLOCK_TOKENS", 128)
    assert kept_bytes(2048, window) <= 2.1 * kept_bytes(1024, window)
