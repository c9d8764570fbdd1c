"""Computes the policy-gradient loss of single tokens, and how these become the loss of a mini-batch.

Invariants:
- All functions are pure, of tensors of shape [tokens]; only trained tokens get here.
- Old, reference and rollout log-probabilities and sums over trajectories are constants; the gradient flows through
  `logprobs` and `entropy` only. Log-ratios are clamped to +-20 before they are exponentiated.
- On the first update of a step old = current: every ratio is 1, its gradient is that of the token's log-probability,
  and the clip is idle.
- A token of advantage 0 has no gradient in any of the policy losses.
- A mini-batch's loss is the sum over tokens of weight * token loss; the weights are computed once, over the whole
  mini-batch. Any split into micro-batches therefore gives the same loss and the same gradient.
- In every mode all trained tokens of a row weigh the same, so one number a row says it all.
- A trajectory that was split into several rows counts as one sequence.
- Rows without trained tokens weigh 0 and enter no denominator; rows whose advantage is 0 do enter it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.algo.own_algorithm import Loss, LossTokens
from swe_rl.algo.sequences import MAX_LOG_RATIO, kl_per_token
from swe_rl.config.choices import KlEstimator, KlPlace, LossAggregation, PolicyLoss
from swe_rl.config.schema import AlgoConfig


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The surrogate of tokens, each of shape [tokens]; `low` and `high` say which end of the clip holds a token."""

    loss: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The parts of a loss, each of shape [tokens]. `total` = policy + kl_coef * kl - entropy_coef * entropy.

    The clipped and the capped are boolean. `kl_capped` is None where no KL is bounded.
    """

    total: Tensor
    policy: Tensor
    kl: Tensor
    kl_capped: Tensor | None
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor

    @property
    def clipped(self) -> Tensor:
        return self.clipped_low | self.clipped_high


def by_sequence(algo: AlgoConfig) -> bool:
    """Tells whether `algo.policy_loss` compares whole trajectories."""
    return algo.policy_loss in (PolicyLoss.gspo, PolicyLoss.gspo_token)


def token_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Returns policy / old for each token, shape [tokens] (PPO, arXiv:1707.06347, section 3)."""
    return (logprobs - old_logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs: Tensor, mean_log_ratio: Tensor) -> Tensor:
    """Returns GSPO's ratio s of each token's trajectory, shape [tokens].

    `mean_log_ratio` is the mean of log policy - log old over the trajectory's tokens; s = exp of it (GSPO,
    arXiv:2507.18071, section 4.1). The gradient reaches a token through sg(s) * policy / sg(policy), GSPO-token's form
    (section 4.3): where all tokens of a trajectory have one advantage, it is the gradient of s itself, and it needs no
    other token's graph.
    """
    scale = mean_log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    # The second factor is exactly 1; it only carries the gradient.
    return scale * torch.exp(logprobs - logprobs.detach())


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_c: float = 0.0
) -> Surrogate:
    """Returns max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)).

    It is PPO's, arXiv:1707.06347, equation 7, with separate ends by DAPO, arXiv:2503.14476, section 3.1. `clip_c` > 1
    also bounds the loss of a negative advantage by -A * clip_c (dual clip, arXiv:1912.09729, equation 5); 0 leaves that
    off.
    """
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, bounded)
    # A negative advantage pushes the ratio down, so that the lower end is the one that can hold it.
    held = bounded > plain
    low = held & (advantages < 0)
    high = held & (advantages > 0)
    if clip_c > 0.0:
        ceiling = -advantages * clip_c
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
        high = high | ((advantages < 0) & (plain > ceiling))
    return Surrogate(loss, low.detach(), high.detach())


def weighted_logprobs(
    logprobs: Tensor, ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """Returns CISPO's loss, -sg(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log policy.

    The source is MiniMax-M1, arXiv:2506.13585, section 3.1, equations 4 and 5. Every token keeps a gradient; `low` and
    `high` say whose weight was clipped.
    """
    ratio = ratio.detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    taught = advantages != 0
    return Surrogate(-weight * advantages * logprobs, (ratio < weight) & taught, (ratio > weight) & taught)


def imitation_loss(logprobs: Tensor, advantages: Tensor) -> Surrogate:
    """Returns -A * log policy: with the advantage 1 it is the cross-entropy. No clip holds a token."""
    held = torch.zeros_like(logprobs, dtype=torch.bool)
    return Surrogate(-advantages * logprobs, held, held)


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Returns the critic's loss for each token, [tokens]: half of the squared distance to `targets`.

    `clip` > 0 takes the larger of that and the one of values kept within `clip` of `old_values`, those at the start of
    the step (Engstrom et al., "Implementation Matters in Deep Policy Gradients", arXiv:2005.12729, section 3; OpenAI's
    Baselines). Targets and old values are constants.
    """
    squared = (values - targets.detach()).square()
    if clip > 0.0:
        near = old_values.detach() + (values - old_values.detach()).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - targets.detach()).square())
    return 0.5 * squared


def kl_in_loss(algo: AlgoConfig) -> bool:
    return algo.kl_coef != 0.0 and algo.kl_in is KlPlace.loss


def kl_bound(algo: AlgoConfig) -> float | None:
    """Returns the largest value of a token's KL in nats, or None without a bound: `algo.kl_cap` is for k3 alone."""
    if algo.kl_estimator in (KlEstimator.k3, KlEstimator.k3_grad_k2):
        return algo.kl_cap or None
    return None


def zero_advantage_contributes(algo: AlgoConfig) -> bool:
    """Tells whether a row with advantage 0 has a gradient at all: only through KL, entropy or the load over experts."""
    return kl_in_loss(algo) or algo.entropy_coef != 0.0 or algo.balance_coef != 0.0


def token_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    correction: Tensor,
    reference_logprobs: Tensor | None,
    algo: AlgoConfig,
    mean_log_ratio: Tensor | None = None,
    formula: Loss | None = None,
    rollout_logprobs: Tensor | None = None,
    sequences: Tensor | None = None,
    sequence_means: Tensor | None = None,
) -> TokenLoss:
    """Returns the loss of each token, shape [tokens], not yet weighted.

    `correction` (see `correction_weights`) multiplies the surrogate only: the KL term of tokens that older weights
    sampled has no importance weight. `mean_log_ratio` is what `sequence_ratio` takes. `formula` takes the place of
    `algo.policy_loss`; it may read `rollout_logprobs`, `sequences` and `sequence_means` (see `LossTokens`). Raises
    ValueError where the KL term is on and `reference_logprobs` is None, and where the policy loss is by trajectory and
    `mean_log_ratio` is None.
    """
    ratio = _policy_ratio(logprobs, old_logprobs, mean_log_ratio, algo)
    if formula is None:
        surrogate = _policy_surrogate(logprobs, ratio, advantages, algo)
    else:
        if rollout_logprobs is None:
            sampled = old_logprobs
        else:
            sampled = rollout_logprobs
        tokens = LossTokens(
            logprobs=logprobs,
            old_logprobs=old_logprobs.detach(),
            rollout_logprobs=sampled.detach(),
            advantages=advantages,
            entropy=entropy,
            reference_logprobs=None if reference_logprobs is None else reference_logprobs.detach(),
            sequences=sequences,
            sequence_means=sequence_means,
        )
        # No clip that we know of holds a token of somebody's own formula.
        held = torch.zeros_like(logprobs, dtype=torch.bool)
        surrogate = Surrogate(formula.loss(tokens), held, held)
    policy = surrogate.loss * correction.detach()
    total = policy
    kl = torch.zeros_like(policy)
    kl_capped = None
    if kl_in_loss(algo):
        if reference_logprobs is None:
            raise ValueError("algo.kl_coef is not 0, but there are no reference log-probabilities")
        kl = kl_per_token(logprobs, reference_logprobs.detach(), algo.kl_estimator, algo.kl_cap)
        if (bound := kl_bound(algo)) is not None:
            kl_capped = kl.detach() >= bound
        total = total + algo.kl_coef * kl
    if algo.entropy_coef != 0.0:
        total = total - algo.entropy_coef * entropy
    return TokenLoss(total, policy, kl, kl_capped, ratio.detach(), surrogate.low, surrogate.high)


def _policy_ratio(logprobs: Tensor, old_logprobs: Tensor, mean_log_ratio: Tensor | None, algo: AlgoConfig) -> Tensor:
    if not by_sequence(algo):
        return token_ratio(logprobs, old_logprobs)
    if mean_log_ratio is None:
        raise ValueError(f"algo.policy_loss={algo.policy_loss}, but the trajectories' mean log-ratios are not given")
    return sequence_ratio(logprobs, mean_log_ratio)


def _policy_surrogate(logprobs: Tensor, ratio: Tensor, advantages: Tensor, algo: AlgoConfig) -> Surrogate:
    if algo.policy_loss is PolicyLoss.cispo:
        return weighted_logprobs(logprobs, ratio, advantages, algo.clip_low, algo.clip_high)
    if algo.policy_loss is PolicyLoss.nll:
        return imitation_loss(logprobs, advantages)
    return clipped_surrogate(ratio, advantages, algo.clip_low, algo.clip_high, algo.clip_c)


def row_weights(
    trained_tokens: Sequence[int],
    trajectory_ids: Sequence[str],
    mode: LossAggregation,
    loss_norm_tokens: int,
    group_ids: Sequence[str] | None = None,
) -> list[float]:
    """Returns the weight of each trained token of each row of one mini-batch.

    `group_ids` are for prompt_mean; None: each trajectory is a prompt of its own.

    With T trained tokens in all, N trajectories that have any, T_i those of trajectory i, G groups that have any, and
    T_g those of group g:

    - token_mean: 1 / T (DAPO, arXiv:2503.14476, section 3.3).
    - sequence_mean: 1 / (N * T_i) (GRPO, arXiv:2402.03300, equation 3).
    - prompt_mean: 1 / (G * T_g) (The Art of Scaling RL Compute, arXiv:2510.13786, section 3.2, prompt average).
    - sequence_sum_norm: 1 / (N * loss_norm_tokens) (Dr. GRPO, arXiv:2503.20783, section 3.2).
    - token_sum: 1.

    Raises ValueError where the lengths differ or `loss_norm_tokens` is not positive.
    """
    if len(trained_tokens) != len(trajectory_ids):
        raise ValueError(f"{len(trained_tokens)} token counts, but {len(trajectory_ids)} trajectory ids")
    if loss_norm_tokens < 1:
        raise ValueError(f"loss_norm_tokens must be positive, not {loss_norm_tokens}")
    owners = trajectory_ids
    if mode is LossAggregation.prompt_mean and group_ids is not None:
        owners = group_ids
    if len(trained_tokens) != len(owners):
        raise ValueError(f"{len(trained_tokens)} token counts, but {len(owners)} group ids")
    per_owner: Counter[str] = Counter()
    for tokens, owner in zip(trained_tokens, owners, strict=True):
        per_owner[owner] += tokens
    num_owners = sum(1 for tokens in per_owner.values() if tokens > 0)
    total = sum(trained_tokens)

    def weight(owner: str) -> float:
        if mode is LossAggregation.token_sum:
            return 1.0
        if mode is LossAggregation.token_mean:
            return 1.0 / total
        if mode is LossAggregation.sequence_sum_norm:
            return 1.0 / (num_owners * loss_norm_tokens)
        return 1.0 / (num_owners * per_owner[owner])

    pairs = zip(trained_tokens, owners, strict=True)
    return [weight(owner) if tokens > 0 else 0.0 for tokens, owner in pairs]
