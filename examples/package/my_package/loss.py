"""The loss: how an advantage moves the weights."""

import torch

from swe_rl.api import LossTokens


class MyPackageLoss:
    """The clipped policy gradient of PPO: a token's ratio counts from 1 - `clip` to 1 + `clip`."""

    needs_rollout_logprobs = False
    needs_all_rows = False

    def __init__(self, clip: float = 0.2) -> None:
        self._clip = clip

    def loss(self, tokens: LossTokens) -> torch.Tensor:
        ratio = (tokens.logprobs - tokens.old_logprobs).exp()
        clipped = ratio.clamp(1.0 - self._clip, 1.0 + self._clip)
        return torch.maximum(-ratio * tokens.advantages, -clipped * tokens.advantages)
