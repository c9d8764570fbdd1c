import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.sampling import SamplingBatch, draw_uniforms, sample_tokens, to_seed


def batch(rows, *, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=7, first_draw=0):
    return SamplingBatch(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_p=np.full(rows, top_p, dtype=np.float64),
        top_k=np.full(rows, top_k, dtype=np.int64),
        seed=np.full(rows, seed, dtype=np.uint64),
        draw=np.arange(first_draw, first_draw + rows, dtype=np.uint64),
        min_p=np.full(rows, min_p, dtype=np.float64),
    )


def test_uniforms_are_uniform_and_uncorrelated_between_seeds_and_draws():
    draws = np.arange(20_000, dtype=np.uint64)
    one, two = (draw_uniforms(np.full(20_000, seed, dtype=np.uint64), draws) for seed in (1, 2))
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
    assert draw_uniforms(seeds, draws)[0] == draw_uniforms(seeds[:1], draws[:1])[0]


def test_frequencies_follow_the_softmax_of_logits_over_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    tokens, _ = sample_tokens(logits.expand(20_000, 4), batch(20_000, temperature=0.7))
    expected = (logits.double() / 0.7).softmax(-1).numpy()
    assert np.abs(np.bincount(tokens, minlength=4) / 20_000 - expected).max() < 0.012


@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p"),
    [(1.0, 0, 0.0), (0.3, 4, 0.0), (0.9, 0, 0.0), (1.0, 3, 0.0), (1.0, 1, 0.0), (1.0, 0, 0.2), (0.8, 9, 0.05)],
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_logprobs_are_over_the_whole_vocabulary_whatever_truncation_keeps(temperature, top_p, top_k, min_p):
    """To the bit those that a trainer computes from the same logits: equal weights have a ratio of 1."""
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0))
    limits = batch(2000, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    tokens, logprobs = sample_tokens(logits.expand(2000, 30), limits)
    table = (logits[0] / torch.tensor(temperature, dtype=torch.float32)).log_softmax(-1)
    assert logprobs == table[tokens].tolist()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (0.9, 0), (1.0, 1), (1.0, 5)])
def test_no_logprob_is_above_0_at_large_logits(top_p, top_k):
    logits = torch.randn(4000, 200, generator=torch.Generator().manual_seed(1)) + 20.0
    logits[:, 0] += 20.0
    _, logprobs = sample_tokens(logits, batch(4000, top_p=top_p, top_k=top_k))
    assert max(logprobs) <= 0.0


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-31])
def test_greedy_takes_the_largest_and_reports_temperature_one(temperature):
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(0)) * 10
    tokens, logprobs = sample_tokens(logits, batch(20, temperature=temperature))
    assert tokens == logits.argmax(-1).tolist()
    assert logprobs == logits.log_softmax(-1).max(-1).values.tolist()


@given(st.integers(0, 2**32), st.integers(0, 6), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
def test_truncation_matches_its_definition(seed, top_k, top_p, min_p):
    """In vLLM's order: min_p, top_k, and top_p of what is left."""
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 2
    tokens, _ = sample_tokens(logits.expand(300, 12), batch(300, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed))
    probs = logits[0].double().softmax(-1)
    likely = [t for t in range(12) if probs[t] >= min_p * probs.max() * (1 - 1e-12)]
    ranked = sorted(likely, key=lambda t: -logits[0, t].item())[: top_k or 12]
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
    together = sample_tokens(logits, mixed)
    for row in range(4):
        alone = SamplingBatch(
            mixed.temperature[[row]], mixed.top_p[[row]], mixed.top_k[[row]], mixed.seed[[row]], mixed.draw[[row]]
        )
        tokens, logprobs = sample_tokens(logits[[row]], alone)
        assert tokens[0] == together[0][row]
        assert logprobs[0] == pytest.approx(together[1][row], abs=1e-6)
    assert together[0][3] == logits[3].argmax().item()


def test_nan_logits_are_refused():
    logits = torch.zeros(2, 5)
    logits[1, 2] = float("nan")
    with pytest.raises(FloatingPointError):
        sample_tokens(logits, batch(2))
