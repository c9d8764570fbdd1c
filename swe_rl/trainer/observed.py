"""What one micro-batch adds to the statistics of a step.

Invariants:
- Nothing is changed but the statistics; losses are weighed as in the loss that is minimised.
"""

import torch
from torch import Tensor

from swe_rl.algo.kl import kl_per_token
from swe_rl.algo.loss import TokenLoss
from swe_rl.config.choices import KlEstimator
from swe_rl.trainer.metrics import Mean, StepStats
from swe_rl.trainer.work import Work


def observe(
    stats: StepStats, work: Work, loss: TokenLoss, entropy: Tensor, start_logprobs: Tensor, correction: Tensor
) -> None:
    """All tensors are [trained tokens] of `work`; `start_logprobs` are those of the old policy."""
    sums = torch.stack([(part.detach() * work.weights).sum() for part in (loss.total, loss.policy, loss.kl)])
    stats.add_losses(*sums.tolist())
    stats.entropy.add(entropy)
    stats.clipped.add(loss.clipped)
    stats.clipped_low.add(loss.clipped_low)
    stats.clipped_high.add(loss.clipped_high)
    stats.ratio.add(loss.ratio)
    stats.correction.add(correction)
    stats.masked.add(correction == 0)
    _engine_gap(stats.kl_rollout, stats.logprob_diff, work, start_logprobs)


def observe_left_out(stats: StepStats, work: Work, entropy: Tensor, start_logprobs: Tensor) -> None:
    """Of rows that are not trained: what is measured of all sampled tokens."""
    stats.left_entropy.add(entropy)
    _engine_gap(stats.left_kl_rollout, stats.left_logprob_diff, work, start_logprobs)


def _engine_gap(kl: Mean, difference: Mean, work: Work, start_logprobs: Tensor) -> None:
    known = torch.isfinite(work.rollout_logprobs)
    rollout, start = work.rollout_logprobs[known], start_logprobs[known]
    kl.add(kl_per_token(rollout, start, KlEstimator.k3))
    difference.add((rollout - start).abs())
