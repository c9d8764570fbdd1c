"""Computes importance weights for the gap between the engine that sampled and the trainer that learns.

Invariants:
- The weights are constants: no gradient flows through them.
- They are capped from above only (truncated importance sampling); a weight is never negative.
- `none` without bounds gives ones, whatever the log-probabilities are.
- What lies outside of the bounds weighs 0 and still counts in the loss's denominator; both bounds are set, or neither.
- A split trajectory has one sequence weight and one fate at the levels `geometric` and `sequence`.
- Both log-probabilities are over the whole vocabulary: where truncation kept tokens, the ratio of any two of them is
  right, and the factor that they share (the kept probability now, divided by the one when they were sampled) is taken
  for 1, which it is at equal weights. To know it, the kept ids of each token would have to be recorded.
"""

import math

import torch
from torch import Tensor

from swe_rl.algo.sequences import MAX_LOG_RATIO, Sequences
from swe_rl.config.choices import Correction, MaskLevel, PolicyLoss
from swe_rl.config.schema import AlgoConfig


def correction_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, sequences: Sequences, algo: AlgoConfig, stale: Tensor | None = None
) -> Tensor:
    """Returns one weight a token, shape [tokens].

    `old_logprobs` are the trainer's at the start of the step, `rollout_logprobs` the engine's when it sampled; `stale`
    (boolean, [tokens]) marks the tokens of rows that older weights sampled. Their old / rollout is then the whole way
    from the policy that sampled to the one at the start of the step, which is the weight that Decoupled PPO gives stale
    data (AReaL, arXiv:2505.24298, section 5.2); `algo.stale_correction` says how it is used for them.

    - token_tis: min(exp(old - rollout), cap) (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy
      RL Training", 2025).
    - sequence_tis: the same with both log-probabilities summed over the trajectory (IMPALA's truncation,
      arXiv:1802.01561, section 4.1, on the product of ratios).
    - `algo.policy_loss=gspo` has one ratio for a trajectory, so also one weight: the mean over its tokens.
    """
    # Without `detach` the loss would also lower the weights of tokens, not only their probability where that is wrong.
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    weights = _truncated_weights(log_ratio, sequences, algo.correction, algo.correction_cap)
    if stale is not None and algo.stale_correction not in (None, algo.correction):
        others = _truncated_weights(log_ratio, sequences, algo.stale_correction, algo.correction_cap)
        weights = torch.where(stale, others, weights)
    # A mask comes after the cap, and looks at the ratio itself: a ratio above the bound is dropped, not capped.
    if has_ratio_mask(algo):
        weights = torch.where(_inside_bounds(log_ratio, sequences, algo), weights, torch.zeros_like(weights))
    if algo.policy_loss is PolicyLoss.gspo and has_token_weights(algo):
        return sequences.mean(weights)
    return weights


def has_ratio_mask(algo: AlgoConfig) -> bool:
    return algo.mask_low is not None and algo.mask_high is not None


def has_token_weights(algo: AlgoConfig) -> bool:
    """Tells whether the weights are anything but ones, and so need the engine's log-probabilities."""
    return (
        algo.correction is not Correction.none
        or algo.stale_correction not in (None, Correction.none)
        or has_ratio_mask(algo)
    )


def weighs_sequences(algo: AlgoConfig) -> bool:
    """Tells whether a token's weight depends on the rest of its trajectory."""
    by_sequence = Correction.sequence_tis in (algo.correction, algo.stale_correction)
    whole = has_ratio_mask(algo) and algo.mask_level is not MaskLevel.token
    return by_sequence or whole or (algo.policy_loss is PolicyLoss.gspo and has_token_weights(algo))


def _truncated_weights(log_ratio: Tensor, sequences: Sequences, correction: Correction | None, cap: float) -> Tensor:
    if correction is None or correction is Correction.none:
        return torch.ones_like(log_ratio)
    if correction is Correction.sequence_tis:
        log_ratio = sequences.sum(log_ratio)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)


def _inside_bounds(log_ratio: Tensor, sequences: Sequences, algo: AlgoConfig) -> Tensor:
    """Tells for each token whether its ratio lies in [mask_low, mask_high]; boolean, [tokens].

    `algo.mask_level` names the ratio:

    - token: IcePop ("Small Leak Can Sink a Great Ship", 2025).
    - geometric: exp of the mean log-ratio, which does not grow with the length; sequence: exp of the sum, masked
      importance sampling (both: Liu et al., "When Speed Kills Stability", 2025, part 3, sequence masking).
    """
    assert algo.mask_low is not None and algo.mask_high is not None
    if algo.mask_level is MaskLevel.geometric:
        log_ratio = sequences.mean(log_ratio)
    elif algo.mask_level is MaskLevel.sequence:
        log_ratio = sequences.sum(log_ratio)
    if algo.mask_low > 0.0:
        low = math.log(algo.mask_low)
    else:
        low = -math.inf
    return (log_ratio >= low) & (log_ratio <= math.log(algo.mask_high))
