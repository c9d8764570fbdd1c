"""GMPO's loss: the geometric mean of a trajectory's clipped token ratios, times its advantage.

Geometric-Mean Policy Optimization, arXiv:2507.20673, section 3: a log-ratio of a token is kept in [-low, high] where it
has already moved the way of its advantage, as in PPO. The ratio of a trajectory is exp of the mean of these, and only
tokens that are not clipped have a gradient. Use algo.loss_aggregation=sequence_mean, which averages over trajectories.
"""

import torch

from swe_rl.api import LossTokens


class Gmpo:
    needs_sequences = True  # the mean over a whole trajectory is the trainer's to know

    def __init__(self, low: float = 0.4, high: float = 0.4) -> None:
        """Bounds of a token's log-ratio: ratios stay between exp(-low) and exp(high)."""
        self._low = low
        self._high = high

    def sequence_terms(self, tokens: LossTokens) -> torch.Tensor:
        return self._clipped(tokens)

    def loss(self, tokens: LossTokens) -> torch.Tensor:
        assert tokens.sequence_means is not None
        ratio = tokens.sequence_means.exp()
        plain = tokens.logprobs.detach() - tokens.old_logprobs
        free = (self._clipped(tokens) == plain).float()
        # The value of a token is its trajectory's ratio; its gradient is that of its own part in the mean.
        moving = 1.0 + free * (tokens.logprobs - tokens.logprobs.detach())
        return -tokens.advantages * ratio * moving

    def _clipped(self, tokens: LossTokens) -> torch.Tensor:
        plain = tokens.logprobs.detach() - tokens.old_logprobs
        bounded = plain.clamp(-self._low, self._high)
        return torch.where(tokens.advantages >= 0, torch.minimum(plain, bounded), torch.maximum(plain, bounded))
