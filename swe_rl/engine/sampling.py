"""Choosing tokens: a seeded, batch-independent draw for every row at once.

Invariants:
- The n-th draw of a request is a pure function of (seed, n): no generator state, so batch mates cannot move it.
- Log-probabilities are those of the distribution that was sampled from, as vLLM's `processed_logprobs`: float32
  log-softmax of logits / temperature, and of what top-p and top-k leave of it (greedy rows: temperature 1).
- The draw is an inverse CDF over a float64 softmax in vocabulary order: float noise of size e in the logits
  moves a token with a probability of about e.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_GREEDY = np.float32(1e-30)  # by less, logits become larger than float32 can say
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Per-row parameters of shape [rows]; `temperature` below 1e-30 is greedy, `top_k` 0 and `top_p` 1 are no limit."""

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    seed: npt.NDArray[np.uint64]
    draw: npt.NDArray[np.uint64]


def to_seed(seed: int) -> int:
    """Any Python integer as an unsigned 64-bit seed."""
    return seed & _SEED_MASK


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(seed: npt.NDArray[np.uint64], draw: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Counter-based uniforms in [0, 1) of shape [rows], 53 bits each.

    The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 17), applied to the seed and then to
    seed + counter, so that neighbouring seeds do not give shifted streams.
    """
    with np.errstate(over="ignore"):
        bits = _mix(_mix(seed + _GOLDEN) + (draw + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _truncate(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zeroes what lies outside top-k and outside the smallest set that holds `top_p` of the mass; [rows, vocab]."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1])
    in_k = (top_k[:, None] == 0) | (rank < top_k[:, None])
    ordered = ordered * in_k
    mass = ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered * (before < top_p[:, None] * mass)
    return torch.zeros_like(probs).scatter_(-1, index, ordered)


def _inverse_cdf(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    cdf = probs.cumsum(-1)
    total = cdf[:, -1:]
    # The product may round up to the total, where no token of positive probability lies.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target, right=True).squeeze(-1)


def sample(logits: torch.Tensor, batch: SamplingBatch) -> tuple[list[int], list[float]]:
    """One token and its log-probability for every row of `logits` [rows, vocab].

    Raises FloatingPointError when a row's distribution is not finite.
    """
    logits = logits.float()
    greedy = batch.temperature < _GREEDY
    temperature = torch.from_numpy(np.where(greedy, np.float32(1.0), batch.temperature))
    scaled = logits / temperature[:, None]
    tokens = logits.argmax(-1) if greedy.any() else None
    left = torch.zeros(len(logits))  # log of the share of the distribution that was sampled from
    if tokens is None or not greedy.all():
        drawn, shares = _draw(scaled, batch)
        left = torch.where(torch.from_numpy(greedy), left, shares.log().float())
        tokens = drawn if tokens is None else torch.where(torch.from_numpy(greedy), tokens, drawn)
    chosen = scaled.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1) - left
    if not bool(torch.isfinite(chosen).all()):
        raise FloatingPointError("the model's logits are not finite")
    return tokens.tolist(), chosen.tolist()


def _draw(scaled: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [rows], and the share of all probability that truncation leaves [rows], exactly 1 without one."""
    probs = scaled.double().softmax(-1)
    shares = torch.ones(len(probs), dtype=torch.float64)
    limited = (batch.top_p < 1.0) | (batch.top_k > 0)
    if limited.any():
        rows = torch.from_numpy(np.flatnonzero(limited))
        top_p, top_k = torch.from_numpy(batch.top_p)[rows], torch.from_numpy(batch.top_k)[rows]
        probs[rows] = _truncate(probs[rows], top_p, top_k)
        shares[rows] = probs[rows].sum(-1)
    drawn = _inverse_cdf(probs, torch.from_numpy(uniforms(batch.seed, batch.draw)))
    return drawn.clamp_(max=scaled.shape[-1] - 1), shares  # only NaN rows reach the last; `sample` refuses those
