import numpy as np
import pytest
import torch

from swe_rl.trainer import logprobs
from swe_rl.trainer.batching import micro_batches
from swe_rl.trainer.logprobs import token_logprobs

CPU = torch.device("cpu")
SEQUENCES = [
    (list(range(1, 20)), [0] * 5 + [1] * 8 + [0] * 2 + [1] * 4),
    ([7, 8, 9, 10, 11], [0, 0, 1, 1, 0]),
    ([40, 41, 42], [0, 1, 1]),
]


def by_hand(model, temperature):
    """Each sequence alone, all logits, NumPy's softmax."""
    values, entropies = [], []
    for ids, mask in SEQUENCES:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().numpy() / temperature
        for t, masked in enumerate(mask):
            if masked:
                p = np.exp(logits[t - 1] - logits[t - 1].max())
                p /= p.sum()
                values.append(np.log(p[ids[t]]))
                entropies.append(-(p * np.log(p)).sum())
    return values, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_logits", [2**27, 3 * 64])
def test_padded_and_chunked_is_the_same_as_each_sequence_alone(build, monkeypatch, temperature, chunk_logits):
    monkeypatch.setattr(logprobs, "MAX_CHUNK_LOGITS", chunk_logits)
    model = build().eval()
    (batch,) = micro_batches(SEQUENCES, 1000, 0, CPU)
    got, entropy = token_logprobs(model, batch, temperature)
    values, entropies = by_hand(model, temperature)
    np.testing.assert_allclose(got.detach().numpy(), values, atol=2e-5)
    np.testing.assert_allclose(entropy.numpy(), entropies, atol=2e-5)


def test_chunks_have_the_same_gradient(build, monkeypatch):
    def gradient(chunk_logits):
        monkeypatch.setattr(logprobs, "MAX_CHUNK_LOGITS", chunk_logits)
        model = build().eval()
        (batch,) = micro_batches(SEQUENCES, 1000, 0, CPU)
        values, entropy = token_logprobs(model, batch, 1.0, entropy_grad=True)
        (values.sum() + 0.5 * entropy.sum()).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    torch.testing.assert_close(gradient(64), gradient(2**27), rtol=1e-4, atol=1e-5)


def test_the_entropy_has_a_gradient_only_where_asked_for(build):
    (batch,) = micro_batches(SEQUENCES, 1000, 0, CPU)
    model = build().eval()
    assert not token_logprobs(model, batch, 1.0)[1].requires_grad
    assert token_logprobs(model, batch, 1.0, entropy_grad=True)[1].requires_grad


def test_the_output_head_runs_at_trained_positions_only(build):
    model, seen = build().eval(), []
    model.lm_head.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    (batch,) = micro_batches(SEQUENCES, 1000, 0, CPU)
    token_logprobs(model, batch, 1.0)
    assert seen == [(16, 32)]
