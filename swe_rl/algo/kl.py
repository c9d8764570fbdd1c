"""Estimators of the KL divergence from the log-probabilities of sampled tokens.

Invariants:
- Every estimate is of KL(policy || reference) per token, in nats, from tokens that the policy sampled.
- k2 and k3 are never negative. k1 is unbiased, but its gradient as a loss has expectation 0.
- Log-ratios are clamped to +-20 before they are exponentiated, so one bad token cannot make the loss infinite.
"""

import torch
from torch import Tensor

from swe_rl.config.choices import KlEstimator

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
