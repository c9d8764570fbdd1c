"""Importance weights for the gap between the engine that sampled and the trainer that learns.

Invariants:
- The weights are constants: no gradient flows through them.
- They are capped from above only (truncated importance sampling); a weight is never negative.
- `none` gives ones, whatever the log-probabilities are.
- A split trajectory has one sequence weight: the product over all its rows.
"""

import torch
from torch import Tensor

from swe_rl.algo.kl import MAX_LOG_RATIO
from swe_rl.config.schema import Correction


def correction_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, sequence_of_token: Tensor, correction: Correction, cap: float
) -> Tensor:
    """One weight a token, shape [tokens].

    `old_logprobs` are the trainer's at the start of the step, `rollout_logprobs` the engine's when it sampled, and
    `sequence_of_token` (int64) numbers the trajectory of each token from 0.

    - token_tis: min(exp(old - rollout), cap) (Yao et al., "Your Efficient RL Framework Secretly Brings You
      Off-Policy RL Training", 2025).
    - sequence_tis: the same with both log-probabilities summed over the trajectory (IMPALA's truncation,
      arXiv:1802.01561, section 4.1, on the product of ratios).
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    if correction is Correction.none:
        return torch.ones_like(log_ratio)
    if correction is Correction.sequence_tis and log_ratio.numel() > 0:
        sums = log_ratio.new_zeros(int(sequence_of_token.max()) + 1)
        log_ratio = sums.index_add_(0, sequence_of_token, log_ratio)[sequence_of_token]
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
