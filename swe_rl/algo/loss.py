"""The policy-gradient loss of single tokens; `aggregate` turns it into the loss of a mini-batch.

Invariants:
- Pure functions of tensors of shape [tokens]; only trained tokens get here.
- Old, reference and rollout log-probabilities are constants; the gradient flows through `logprobs` and `entropy` only.
- On the first update of a step old = current: the ratio is 1 and the clip idle.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.algo.kl import MAX_LOG_RATIO, kl_per_token
from swe_rl.config.schema import AlgoConfig, KlPlace


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Each of shape [tokens]. `total` = policy + kl_coef * kl - entropy_coef * entropy; `clipped` is boolean."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_c: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, ratio and whether the clip is active, each of shape [tokens].

    max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)) (PPO, arXiv:1707.06347, equation 7; separate ends:
    DAPO, arXiv:2503.14476, section 3.1). `clip_c` > 1 also bounds the loss of a negative advantage by -A * clip_c
    (dual clip, arXiv:1912.09729, equation 5); 0 leaves that off.
    """
    ratio = (logprobs - old_logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if clip_c > 0.0:
        ceiling = -advantages * clip_c
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
        clipped = clipped | ((advantages < 0) & (plain > ceiling))
    return loss, ratio.detach(), clipped.detach()


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
) -> TokenLoss:
    """The loss of each token, shape [tokens], not yet weighted.

    `correction` (see `correction_weights`) multiplies the surrogate only. Raises ValueError where the KL term is on
    and `reference_logprobs` is None.
    """
    surrogate, ratio, clipped = clipped_surrogate(
        logprobs, old_logprobs, advantages, algo.clip_low, algo.clip_high, algo.clip_c
    )
    policy = surrogate * correction.detach()
    total, kl = policy, torch.zeros_like(policy)
    if kl_in_loss(algo):
        if reference_logprobs is None:
            raise ValueError("algo.kl_coef is not 0, but there are no reference log-probabilities")
        kl = kl_per_token(logprobs, reference_logprobs.detach(), algo.kl_estimator)
        total = total + algo.kl_coef * kl
    if algo.entropy_coef != 0.0:
        total = total - algo.entropy_coef * entropy
    return TokenLoss(total=total, policy=policy, kl=kl, ratio=ratio, clipped=clipped)
