"""Sums over whole trajectories what is known by the token.

Invariants:
- A trajectory is all its trained tokens: those of all its rows, in whichever micro-batch and on whichever rank.
- The order of the tokens does not matter. Sums are in float64, because a trajectory has tens of thousands of tokens.
- No gradient flows through a sum.
- Every value estimates KL(policy || reference) per token, in nats, from tokens that the policy sampled. What a loss of
  it descends is another matter: see `kl_per_token`.
- k2 and k3 are never negative.
- Log-ratios are clamped to +-20 before they are exponentiated, so one bad token cannot make the loss infinite.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.config.choices import KlEstimator


@dataclass(frozen=True, slots=True)
class Sequences:
    """The trajectories of tokens. `of_token` (int64, [tokens]) numbers each token's trajectory from 0, below `count`.

    Where a trajectory's tokens are on several ranks, `over_ranks` sums a tensor over them; all ranks ask for the same
    sums at the same time.
    """

    of_token: Tensor
    count: int
    over_ranks: Callable[[Tensor], Tensor] | None = None

    def sum(self, values: Tensor) -> Tensor:
        """Returns for each token the sum of its trajectory's values; shape [tokens] in and out."""
        return self._totals(values)[self.of_token].to(values.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Returns for each token the mean of its trajectory's values; shape [tokens] in and out."""
        means = self._totals(values) / self._totals(torch.ones_like(values)).clamp(min=1.0)
        return means[self.of_token].to(values.dtype)

    def _totals(self, values: Tensor) -> Tensor:
        zeros = torch.zeros(self.count, dtype=torch.float64, device=values.device)
        totals = zeros.index_add_(0, self.of_token, values.detach().double())
        if self.over_ranks:
            return self.over_ranks(totals)
        return totals


# exp(20) is about 5e8: far beyond any clip, and its products with advantages still fit float32 with room.
MAX_LOG_RATIO = 20.0


def kl_per_token(
    logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator, cap: float | None = None
) -> Tensor:
    """Returns an estimate of KL(policy || reference) at each token in nats (J. Schulman, "Approximating KL Divergence",
    2020).

    With d = log reference - log policy, and expected gradients over tokens that the policy itself samples:

    - k1 = -d: the value is unbiased, the gradient is 0.
    - k2 = d^2 / 2: the value is biased, the gradient is that of KL(policy || reference).
    - k3 = exp(d) - 1 - d: the value is unbiased, the gradient is that of KL(reference || policy).
    - k3_grad_k2: the value of k3 with the gradient of k2.

    `cap` bounds the value of k3; 0 and None leave it as it is. A token at the bound has no gradient, unless it is k2's.
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator is KlEstimator.k1:
        return -log_ratio
    k2 = 0.5 * log_ratio.square()
    if estimator is KlEstimator.k2:
        return k2
    # expm1 keeps the digits of a small log-ratio, which exp(d) - 1 would lose.
    k3 = torch.expm1(log_ratio) - log_ratio
    if cap:
        k3 = k3.clamp(max=cap)
    if estimator is KlEstimator.k3:
        return k3
    return k3.detach() + (k2 - k2.detach())
