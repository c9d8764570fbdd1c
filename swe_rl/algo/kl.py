"""Estimators of the KL divergence from the log-probabilities of sampled tokens.

Invariants:
- Every estimate is of KL(policy || reference) per token, in nats, from tokens that the policy sampled.
- k2 and k3 are never negative. k1 is unbiased, but its gradient as a loss has expectation 0.
- Log-ratios are clamped to +-20 before they are exponentiated, so one bad token cannot make the loss infinite.
"""

from collections.abc import Sequence

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


def rewards_with_kl(rewards: Sequence[float | None], kl_sums: Sequence[float], kl_coef: float) -> list[float | None]:
    """Rewards less `kl_coef` times each trajectory's KL summed over its sampled tokens (nats); `algo.kl_in=reward`.

    It is applied before the advantages, so the penalty is centred with the group (InstructGPT, arXiv:2203.02155,
    equation 2, as an outcome reward). A missing reward stays missing.
    """
    if len(rewards) != len(kl_sums):
        raise ValueError(f"{len(rewards)} rewards, but {len(kl_sums)} KL sums")
    pairs = zip(rewards, kl_sums, strict=True)
    return [None if reward is None else reward - kl_coef * kl for reward, kl in pairs]
