import pytest
import torch

from swe_rl.trainer import logprobs as head
from swe_rl.trainer.logprobs import chunked_logprobs

VOCAB, HIDDEN, TOKENS = 50, 12, 23


def whole(hidden, weight, targets, temperature):
    """All logits at once, by autograd."""
    logits = hidden @ weight.T / temperature
    table = torch.log_softmax(logits, -1)
    return table.gather(-1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)


def inputs():
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.float32, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.float32, requires_grad=True)
    return hidden, weight, torch.randint(0, VOCAB, (TOKENS,))


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_values_and_gradients_are_those_of_whole_logits(monkeypatch, rows, temperature, entropy_grad):
    monkeypatch.setattr(head, "MAX_CHUNK_LOGITS", rows * VOCAB)
    hidden, weight, targets = inputs()
    got = chunked_logprobs(hidden, weight, targets, temperature, entropy_grad=entropy_grad)
    expected = whole(hidden, weight, targets, temperature)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-5, atol=1e-5)
    assert got[1].requires_grad is entropy_grad
    factors = torch.randn(2, TOKENS)

    def gradients(values):
        loss = (values[0] * factors[0]).sum()
        loss = loss + (values[1] * factors[1]).sum() if entropy_grad else loss
        return torch.autograd.grad(loss, (hidden, weight))

    for mine, reference in zip(gradients(got), gradients(expected), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


def test_logits_never_exist_whole(monkeypatch):
    monkeypatch.setattr(head, "MAX_CHUNK_LOGITS", 4 * VOCAB)
    sizes = []
    plain = head._compute_logits
    monkeypatch.setattr(head, "_compute_logits", lambda *given: sizes.append(len(given[0])) or plain(*given))
    hidden, weight, targets = inputs()
    chunked_logprobs(hidden, weight, targets, 1.0)[0].sum().backward()
    assert max(sizes) == 4 and sum(sizes) == 2 * TOKENS


def test_no_trained_token_still_has_a_gradient():
    """Every rank must take part in the reduction of the gradients."""
    hidden, weight, targets = inputs()
    chunked_logprobs(hidden[:0], weight, targets[:0], 1.0)[0].sum().backward()
    assert weight.grad is not None and not weight.grad.any() and not hidden.grad.any()


def test_a_float32_head_does_not_round_logits():
    """bfloat16 keeps eight bits: logits near 20 are off by up to 1/16, log-probabilities with them."""
    torch.manual_seed(0)
    hidden = torch.randn(64, 32).bfloat16()
    weight = torch.randn(500, 32).bfloat16()  # logits of 5.7 on average, 23 at most
    targets = torch.randint(0, 500, (64,))
    exact = (hidden.double() @ weight.double().t()).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    errors = {
        on: (chunked_logprobs(hidden, weight, targets, 1.0, float32_head=on)[0] - exact).abs() for on in (True, False)
    }
    assert errors[True].max() < 1e-4 < 1e-2 < errors[False].mean()


def test_a_float32_head_has_the_exact_gradient():
    torch.manual_seed(0)
    hidden, weight = torch.randn(16, 32).bfloat16().requires_grad_(), torch.randn(50, 32).bfloat16().requires_grad_()
    targets = torch.randint(0, 50, (16,))
    chunked_logprobs(hidden, weight, targets, 1.0)[0].sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    (exact[0] @ exact[1].t()).log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    for mine, reference in zip((hidden, weight), exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), reference.grad, rtol=0.02, atol=0.02)
