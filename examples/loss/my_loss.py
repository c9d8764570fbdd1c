"""A loss of your own: the plain policy gradient, weighted down where the policy has moved away from the sampler."""

import torch

from swe_rl.api import LossTokens


class MyLoss:
    """REINFORCE with a weight of at most `cap` for each token."""

    needs_rollout_logprobs = True  # rules refuse rollout.capture=retokenize
    needs_all_rows = False  # tokens of advantage 0 teach it nothing

    def __init__(self, cap: float = 2.0) -> None:
        self._cap = cap

    def loss(self, tokens: LossTokens) -> torch.Tensor:
        weight = (tokens.logprobs.detach() - tokens.rollout_logprobs).exp().clamp(max=self._cap)
        return -weight * tokens.advantages * tokens.logprobs
