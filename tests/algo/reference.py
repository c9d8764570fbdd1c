"""The papers' formulas in NumPy, one trajectory at a time, written from the papers and not from swe_rl.

A batch is a list of trajectories; each is a dict of float arrays over its trained tokens (`new`, `old`, `rollout`,
`reference`) and its advantage `A`.
"""

import numpy as np


def grpo_advantages(rewards):
    """arXiv:2402.03300, section 4.1.2, with the sample's standard deviation."""
    rewards = np.asarray(rewards, dtype=float)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def rloo_advantages(rewards):
    """arXiv:2402.14740, section 3.3: the baseline of each is the mean of the others."""
    rewards = np.asarray(rewards, dtype=float)
    return np.array([rewards[i] - np.delete(rewards, i).mean() for i in range(len(rewards))])


def reinforce_pp_advantages(groups):
    """arXiv:2501.03262v9, section 3: (A - mean of the batch) / std of the batch."""
    flat = np.concatenate([np.asarray(group, dtype=float) for group in groups])
    return [(np.asarray(group, dtype=float) - flat.mean()) / (flat.std(ddof=1) + 1e-6) for group in groups]


def reinforce_pp_baseline_advantages(groups):
    """arXiv:2501.03262v9, section 3, with baseline: less the group's mean first."""
    return reinforce_pp_advantages([np.asarray(group, dtype=float) - np.mean(group) for group in groups])


def clip_token(ratio, advantage, low, high):
    """PPO, arXiv:1707.06347, equation 7, as a loss."""
    return -min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def dapo_loss(batch, low, high):
    """arXiv:2503.14476, equation 8: every token of the batch weighs the same."""
    losses = [clip_token(r, one["A"], low, high) for one in batch for r in np.exp(one["new"] - one["old"])]
    return np.sum(losses) / sum(len(one["new"]) for one in batch)


def grpo_loss(batch, low, high):
    """arXiv:2402.03300, equation 3: mean over each trajectory's tokens, then over trajectories; no KL."""
    means = [np.mean([clip_token(r, one["A"], low, high) for r in np.exp(one["new"] - one["old"])]) for one in batch]
    return np.mean(means)


def gspo_ratio(one):
    """arXiv:2507.18071, equation 7: (policy / old of the whole response) to the power of 1 / length."""
    return np.prod(np.exp(one["new"] - one["old"])) ** (1 / len(one["new"]))


def gspo_loss(batch, low, high):
    """arXiv:2507.18071, equation 5."""
    return np.mean([clip_token(gspo_ratio(one), one["A"], low, high) for one in batch])


def gspo_gradient(batch, low, high):
    """arXiv:2507.18071, equation 10 (with the sign of a loss) for each token's log-probability, where not clipped."""
    gradients = []
    for one in batch:
        ratio, length = gspo_ratio(one), len(one["new"])
        idle = clip_token(ratio, one["A"], low, high) == -ratio * one["A"]
        each = -ratio * one["A"] / length / len(batch) if idle else 0.0
        gradients.append(np.full(length, each))
    return gradients


def cispo_loss(batch, low, high):
    """arXiv:2506.13585, equations 4 and 5."""
    total = 0.0
    for one in batch:
        weights = np.clip(np.exp(one["new"] - one["old"]), 1 - low, 1 + high)
        total += np.sum(weights * one["A"] * one["new"])
    return -total / sum(len(one["new"]) for one in batch)


def cispo_gradient(batch, low, high):
    """arXiv:2506.13585, equation 4 with the weights constant, for each token's log-probability."""
    tokens = sum(len(one["new"]) for one in batch)
    return [-np.clip(np.exp(one["new"] - one["old"]), 1 - low, 1 + high) * one["A"] / tokens for one in batch]


def token_tis(one, cap):
    """Yao et al., 2025: min(trainer / engine, cap) for each token."""
    return np.minimum(np.exp(one["old"] - one["rollout"]), cap)


def sequence_tis(one, cap):
    """The same for the product over the trajectory."""
    return np.full(len(one["old"]), min(np.prod(np.exp(one["old"] - one["rollout"])), cap))


def geometric_mask(one, low, high):
    """Liu et al., 2025: a trajectory is kept where the geometric mean of its ratios lies within the bounds."""
    mean = np.prod(np.exp(one["old"] - one["rollout"])) ** (1 / len(one["old"]))
    return np.full(len(one["old"]), float(low <= mean <= high))


def sequence_mask(one, low, high):
    product = np.prod(np.exp(one["old"] - one["rollout"]))
    return np.full(len(one["old"]), float(low <= product <= high))
