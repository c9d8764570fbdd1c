"""The policy-gradient loss of single tokens; `aggregate` turns it into the loss of a mini-batch.

Invariants:
- Pure functions of tensors of shape [tokens]; only trained tokens get here.
- Old, reference and rollout log-probabilities are constants; the gradient flows through `logprobs` and `entropy` only.
- On the first update of a step old = current: the ratio is 1 and the clip idle.
- A token of advantage 0 has no gradient in any of the policy losses.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.algo.kl import kl_per_token
from swe_rl.algo.ratio import by_sequence, sequence_ratio, token_ratio
from swe_rl.config.choices import KlPlace, PolicyLoss
from swe_rl.config.schema import AlgoConfig


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Each of shape [tokens]; `low` and `high` are boolean: which end of the clip holds the token."""

    loss: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Each of shape [tokens]. `total` = policy + kl_coef * kl - entropy_coef * entropy; the clipped are boolean."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor

    @property
    def clipped(self) -> Tensor:
        return self.clipped_low | self.clipped_high


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_c: float = 0.0
) -> Surrogate:
    """max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)).

    PPO, arXiv:1707.06347, equation 7; separate ends: DAPO, arXiv:2503.14476, section 3.1. `clip_c` > 1 also bounds the
    loss of a negative advantage by -A * clip_c (dual clip, arXiv:1912.09729, equation 5); 0 leaves that off.
    """
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, bounded)
    held = bounded > plain
    low, high = held & (advantages < 0), held & (advantages > 0)
    if clip_c > 0.0:
        ceiling = -advantages * clip_c
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
        high = high | ((advantages < 0) & (plain > ceiling))
    return Surrogate(loss, low.detach(), high.detach())


def weighted_logprobs(
    logprobs: Tensor, ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """CISPO: -sg(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log policy.

    MiniMax-M1, arXiv:2506.13585, section 3.1, equations 4 and 5. Every token keeps a gradient; `low` and `high` say
    whose weight was clipped.
    """
    ratio = ratio.detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    taught = advantages != 0
    return Surrogate(-weight * advantages * logprobs, (ratio < weight) & taught, (ratio > weight) & taught)


def kl_in_loss(algo: AlgoConfig) -> bool:
    return algo.kl_coef != 0.0 and algo.kl_in is KlPlace.loss


def zero_advantage_contributes(algo: AlgoConfig) -> bool:
    """Whether a row with advantage 0 has a gradient at all: only through KL or entropy."""
    return kl_in_loss(algo) or algo.entropy_coef != 0.0


def token_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    correction: Tensor,
    reference_logprobs: Tensor | None,
    algo: AlgoConfig,
    mean_log_ratio: Tensor | None = None,
) -> TokenLoss:
    """The loss of each token, shape [tokens], not yet weighted.

    `correction` (see `correction_weights`) multiplies the surrogate only. `mean_log_ratio` is what `sequence_ratio`
    takes. Raises ValueError where the KL term is on and `reference_logprobs` is None, and where the policy loss is by
    trajectory and `mean_log_ratio` is None.
    """
    ratio = _ratio(logprobs, old_logprobs, mean_log_ratio, algo)
    surrogate = _surrogate(logprobs, ratio, advantages, algo)
    policy = surrogate.loss * correction.detach()
    total, kl = policy, torch.zeros_like(policy)
    if kl_in_loss(algo):
        if reference_logprobs is None:
            raise ValueError("algo.kl_coef is not 0, but there are no reference log-probabilities")
        kl = kl_per_token(logprobs, reference_logprobs.detach(), algo.kl_estimator)
        total = total + algo.kl_coef * kl
    if algo.entropy_coef != 0.0:
        total = total - algo.entropy_coef * entropy
    return TokenLoss(total, policy, kl, ratio.detach(), surrogate.low, surrogate.high)


def _ratio(logprobs: Tensor, old_logprobs: Tensor, mean_log_ratio: Tensor | None, algo: AlgoConfig) -> Tensor:
    if not by_sequence(algo):
        return token_ratio(logprobs, old_logprobs)
    if mean_log_ratio is None:
        raise ValueError(f"algo.policy_loss={algo.policy_loss}, but the trajectories' mean log-ratios are not given")
    return sequence_ratio(logprobs, mean_log_ratio)


def _surrogate(logprobs: Tensor, ratio: Tensor, advantages: Tensor, algo: AlgoConfig) -> Surrogate:
    if algo.policy_loss is PolicyLoss.cispo:
        return weighted_logprobs(logprobs, ratio, advantages, algo.clip_low, algo.clip_high)
    return clipped_surrogate(ratio, advantages, algo.clip_low, algo.clip_high, algo.clip_c)
