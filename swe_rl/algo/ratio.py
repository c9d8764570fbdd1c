"""The probability ratio of the policy to the old one: of each token, or of its whole trajectory.

Invariants:
- Old log-probabilities and sums over trajectories are constants.
- Log-ratios are clamped to +-20 before they are exponentiated.
- Where the policy is the old one, every ratio is 1, and its gradient is that of the token's log-probability.
"""

import torch
from torch import Tensor

from swe_rl.algo.kl import MAX_LOG_RATIO
from swe_rl.config.choices import PolicyLoss
from swe_rl.config.schema import AlgoConfig


def by_sequence(algo: AlgoConfig) -> bool:
    """Whether `algo.policy_loss` compares whole trajectories."""
    return algo.policy_loss in (PolicyLoss.gspo, PolicyLoss.gspo_token)


def token_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """policy / old for each token, shape [tokens] (PPO, arXiv:1707.06347, section 3)."""
    return (logprobs - old_logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs: Tensor, mean_log_ratio: Tensor) -> Tensor:
    """GSPO's ratio s of each token's trajectory, shape [tokens].

    `mean_log_ratio` is the mean of log policy - log old over the trajectory's tokens; s = exp of it (GSPO,
    arXiv:2507.18071, section 4.1). The gradient reaches a token through sg(s) * policy / sg(policy), GSPO-token's form
    (section 4.3): where all tokens of a trajectory have one advantage, it is the gradient of s itself, and it needs
    no other token's graph.
    """
    scale = mean_log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return scale * torch.exp(logprobs - logprobs.detach())
