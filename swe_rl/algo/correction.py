"""Importance weights for the gap between the engine that sampled and the trainer that learns.

Invariants:
- The weights are constants: no gradient flows through them.
- They are capped from above only (truncated importance sampling); a weight is never negative.
- `none` without bounds gives ones, whatever the log-probabilities are.
- A token outside of the bounds weighs 0; both bounds are set, or neither.
- A split trajectory has one sequence weight: the product over all its rows.
"""

import math

import torch
from torch import Tensor

from swe_rl.algo.kl import MAX_LOG_RATIO
from swe_rl.config.schema import Correction


def correction_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    sequence_of_token: Tensor,
    correction: Correction,
    cap: float,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Tensor:
    """One weight a token, shape [tokens].

    `old_logprobs` are the trainer's at the start of the step, `rollout_logprobs` the engine's when it sampled, and
    `sequence_of_token` (int64) numbers the trajectory of each token from 0.

    - token_tis: min(exp(old - rollout), cap) (Yao et al., "Your Efficient RL Framework Secretly Brings You
      Off-Policy RL Training", 2025).
    - sequence_tis: the same with both log-probabilities summed over the trajectory (IMPALA's truncation,
      arXiv:1802.01561, section 4.1, on the product of ratios).
    - bounds (`algo.mask_low`, `algo.mask_high`): a token whose own ratio lies outside of them is masked, whichever the
      correction (IcePop, "Small Leak Can Sink a Great Ship", 2025).
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    low, high = bounds
    if low is not None and high is not None:
        inside = (log_ratio >= math.log(max(low, 1e-12))) & (log_ratio <= math.log(high))
        unbounded = correction_weights(old_logprobs, rollout_logprobs, sequence_of_token, correction, cap)
        return torch.where(inside, unbounded, torch.zeros_like(unbounded))
    if correction is Correction.none:
        return torch.ones_like(log_ratio)
    if correction is Correction.sequence_tis and log_ratio.numel() > 0:
        sums = log_ratio.new_zeros(int(sequence_of_token.max()) + 1)
        log_ratio = sums.index_add_(0, sequence_of_token, log_ratio)[sequence_of_token]
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
