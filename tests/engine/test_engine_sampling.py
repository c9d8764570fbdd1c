import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.engine.sampling import SamplingBatch, sample, to_seed, uniforms


def batch(rows, *, temperature=1.0, top_p=1.0, top_k=0, seed=7, first_draw=0):
    return SamplingBatch(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_p=np.full(rows, top_p, dtype=np.float64),
        top_k=np.full(rows, top_k, dtype=np.int64),
        seed=np.full(rows, seed, dtype=np.uint64),
        draw=np.arange(first_draw, first_draw + rows, dtype=np.uint64),
    )


def test_uniforms_are_uniform_and_uncorrelated_between_seeds_and_draws():
    draws = np.arange(20_000, dtype=np.uint64)
    one, two = (uniforms(np.full(20_000, seed, dtype=np.uint64), draws) for seed in (1, 2))
    for sample_of in (one, two):
        assert sample_of.min() >= 0.0 and sample_of.max() < 1.0
        assert np.abs(np.histogram(sample_of, 20, (0, 1))[0] / 1000 - 1).max() < 0.15
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.03
    assert not np.intersect1d(one, two).size


@given(st.integers(), st.integers(0, 2**40), st.integers(1, 5))
def test_a_draw_depends_on_its_seed_and_number_only(seed, draw, others):
    seeds = np.array([to_seed(seed)] + [3] * others, dtype=np.uint64)
    draws = np.array([draw] + [9] * others, dtype=np.uint64)
    assert uniforms(seeds, draws)[0] == uniforms(seeds[:1], draws[:1])[0]


def test_frequencies_follow_the_softmax_of_logits_over_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    tokens, _ = sample(logits.expand(20_000, 4), batch(20_000, temperature=0.7))
    expected = (logits.double() / 0.7).softmax(-1).numpy()
    assert np.abs(np.bincount(tokens, minlength=4) / 20_000 - expected).max() < 0.012


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.3, 4), (0.9, 0), (1.0, 3), (1.0, 1)])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(top_p, top_k):
    """As vLLM's processed log-probabilities: they sum to 1 over what can be sampled."""
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample(logits.expand(2000, 30), batch(2000, temperature=0.5, top_p=top_p, top_k=top_k))
    by_token = dict(zip(tokens, logprobs, strict=True))
    masked = torch.full((30,), -torch.inf, dtype=torch.float64)
    kept = sorted(by_token, key=lambda token: -logits[0, token].item()) if (top_p, top_k) != (1.0, 0) else range(30)
    masked[list(kept)] = logits[0, list(kept)].double() / 0.5
    expected = masked.log_softmax(-1)
    for token, logprob in by_token.items():
        assert logprob == pytest.approx(expected[token].item(), abs=1e-5)
    if (top_p, top_k) == (1.0, 0):
        plain = (logits[0] / 0.5).log_softmax(-1)
        assert all(logprob == plain[token].item() for token, logprob in by_token.items())  # to the bit, as ever


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-31])
def test_greedy_takes_the_largest_and_reports_temperature_one(temperature):
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(0)) * 10
    tokens, logprobs = sample(logits, batch(20, temperature=temperature))
    assert tokens == logits.argmax(-1).tolist()
    assert logprobs == logits.log_softmax(-1).max(-1).values.tolist()


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(0, 6), st.floats(0.05, 1.0))
def test_truncation_matches_its_definition(seed, top_k, top_p):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 2
    tokens, _ = sample(logits.expand(300, 12), batch(300, top_p=top_p, top_k=top_k, seed=seed))
    ranked = sorted(range(12), key=lambda t: -logits[0, t].item())[: top_k or 12]
    probs = logits[0].double().softmax(-1)
    mass, allowed = sum(probs[t].item() for t in ranked), []
    for token in ranked:
        if sum(probs[t].item() for t in allowed) >= top_p * mass - 1e-12:
            break
        allowed.append(token)
    assert set(tokens) <= set(allowed)
    assert ranked[0] in allowed


def test_rows_with_different_parameters_do_not_mix():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
    mixed = SamplingBatch(
        temperature=np.array([0.0, 1.0, 0.5, 1.0], dtype=np.float32),
        top_p=np.array([1.0, 1.0, 0.4, 1.0]),
        top_k=np.array([0, 0, 0, 1]),
        seed=np.array([1, 2, 3, 4], dtype=np.uint64),
        draw=np.array([5, 0, 2, 1], dtype=np.uint64),
    )
    together = sample(logits, mixed)
    for row in range(4):
        alone = SamplingBatch(
            mixed.temperature[[row]], mixed.top_p[[row]], mixed.top_k[[row]], mixed.seed[[row]], mixed.draw[[row]]
        )
        tokens, logprobs = sample(logits[[row]], alone)
        assert tokens[0] == together[0][row]
        assert logprobs[0] == pytest.approx(together[1][row], abs=1e-6)
    assert together[0][3] == logits[3].argmax().item()


def test_nan_logits_are_refused():
    logits = torch.zeros(2, 5)
    logits[1, 2] = float("nan")
    with pytest.raises(FloatingPointError):
        sample(logits, batch(2))
