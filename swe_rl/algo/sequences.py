"""Sums over whole trajectories of what is known by the token.

Invariants:
- A trajectory is all its trained tokens: those of all its rows, in whichever micro-batch and on whichever rank.
- The order of the tokens does not matter. Sums are in float64, because a trajectory has tens of thousands of tokens.
- No gradient flows through a sum.
- Every estimate is of KL(policy || reference) per token, in nats, from tokens that the policy sampled.
- k2 and k3 are never negative. k1 is unbiased, but its gradient as a loss has expectation 0.
- Log-ratios are clamped to +-20 before they are exponentiated, so one bad token cannot make the loss infinite.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.config.choices import KlEstimator


@dataclass(frozen=True, slots=True)
class Sequences:
    """`of_token` (int64, [tokens]) numbers the trajectory of each token here from 0, below `count`.

    Where a trajectory's tokens are on several ranks, `over_ranks` sums a tensor over them; all ranks ask for the same
    sums at the same time.
    """

    of_token: Tensor
    count: int
    over_ranks: Callable[[Tensor], Tensor] | None = None

    def sum(self, values: Tensor) -> Tensor:
        """Each token's value becomes the sum of its trajectory's values; shape [tokens] in and out."""
        return self._totals(values)[self.of_token].to(values.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Each token's value becomes the mean of its trajectory's values; shape [tokens] in and out."""
        means = self._totals(values) / self._totals(torch.ones_like(values)).clamp(min=1.0)
        return means[self.of_token].to(values.dtype)

    def _totals(self, values: Tensor) -> Tensor:
        zeros = torch.zeros(self.count, dtype=torch.float64, device=values.device)
        totals = zeros.index_add_(0, self.of_token, values.detach().double())
        return self.over_ranks(totals) if self.over_ranks else totals


MAX_LOG_RATIO = 20.0


def kl_per_token(logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """k1, k2 or k3 (J. Schulman, "Approximating KL Divergence", 2020); same shape as the arguments, nats.

    With d = log reference - log policy: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d.
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator is KlEstimator.k1:
        return -log_ratio
    if estimator is KlEstimator.k2:
        return 0.5 * log_ratio.square()
    return torch.expm1(log_ratio) - log_ratio
