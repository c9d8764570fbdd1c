"""Chooses tokens: a seeded, batch-independent draw for every row at once.

Invariants:
- The n-th draw of a request is a pure function of (seed, n): no generator state, so batch mates cannot move it.
- Log-probabilities are over the whole vocabulary at the row's temperature (greedy rows: temperature 1): the float32
  log-softmax of logits / temperature. Truncation changes which tokens are drawn, never what is reported of them: the
  trainer computes the same number from the same logits, so that equal weights give a ratio of 1.
- The draw is an inverse CDF over a float64 softmax in vocabulary order: float noise of size e in the logits moves a
  token with a probability of about e.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

# These are the constants of SplitMix64: 2**64 over the golden ratio, and the two multipliers of its finaliser.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Divided by less, logits become larger than float32 can say.
_GREEDY = np.float32(1e-30)
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of all rows, of shape [rows]; `temperature` below 1e-30 is greedy.

    `top_k` 0, `top_p` 1 and `min_p` 0 are no limit; `min_p` None stands for no limit in any row.
    """

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    seed: npt.NDArray[np.uint64]
    draw: npt.NDArray[np.uint64]
    min_p: npt.NDArray[np.float64] | None = None


def to_seed(seed: int) -> int:
    """Returns any Python integer as an unsigned 64-bit seed."""
    return seed & _SEED_MASK


def _mix_bits(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def draw_uniforms(seed: npt.NDArray[np.uint64], draw: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns counter-based uniforms in [0, 1) of shape [rows], 53 bits each.

    The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 17) is applied to the seed and then to seed +
    counter, so that neighbouring seeds do not give shifted streams.
    """
    with np.errstate(over="ignore"):
        bits = _mix_bits(_mix_bits(seed + _GOLDEN) + (draw + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _truncate_probs(
    probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor | None
) -> torch.Tensor:
    """Zeroes what truncation leaves out; [rows, vocab].

    It goes in vLLM's order: first what is less likely than `min_p` times the likeliest token, then what lies outside
    top-k, then what lies outside the smallest set that holds `top_p` of the mass that is left.
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1])
    if min_p is not None:
        ordered = ordered * (ordered >= min_p[:, None] * ordered[:, :1])
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


def sample_tokens(logits: torch.Tensor, batch: SamplingBatch) -> tuple[list[int], list[float]]:
    """Returns one token and its log-probability for every row of `logits` [rows, vocab].

    Raises FloatingPointError when a row's distribution is not finite.
    """
    logits = logits.float()
    greedy = batch.temperature < _GREEDY
    temperature = torch.from_numpy(np.where(greedy, np.float32(1.0), batch.temperature))
    scaled = logits / temperature[:, None]
    tokens = None
    if greedy.any():
        tokens = logits.argmax(-1)
    if tokens is None or not greedy.all():
        drawn = _draw_tokens(scaled, batch)
        if tokens is None:
            tokens = drawn
        else:
            tokens = torch.where(torch.from_numpy(greedy), tokens, drawn)
    # None of these is above 0: the sum that a log-softmax takes the logarithm of has the largest term, which is 1.
    chosen = scaled.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    if not bool(torch.isfinite(chosen).all()):
        raise FloatingPointError("the model's logits are not finite")
    return tokens.tolist(), chosen.tolist()


def _draw_tokens(scaled: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Returns tokens [rows] of what truncation leaves."""
    probs = scaled.double().softmax(-1)
    limited = (batch.top_p < 1.0) | (batch.top_k > 0)
    if batch.min_p is not None:
        limited |= batch.min_p > 0.0
    if limited.any():
        rows = torch.from_numpy(np.flatnonzero(limited))
        top_p = torch.from_numpy(batch.top_p)[rows]
        top_k = torch.from_numpy(batch.top_k)[rows]
        if batch.min_p is None:
            min_p = None
        else:
            min_p = torch.from_numpy(batch.min_p)[rows]
        probs[rows] = _truncate_probs(probs[rows], top_p, top_k, min_p)
    drawn = _inverse_cdf(probs, torch.from_numpy(draw_uniforms(batch.seed, batch.draw)))
    # Only rows of NaN reach the last; `sample_tokens` refuses those.
    return drawn.clamp_(max=scaled.shape[-1] - 1)
