"""Credit below the trajectory: what its turns brought, against the same turns of its group; of tokens, by a critic.

Invariants:
- A reward counts for what was done up to it, never for what came after.
- Rewards that are all 0 give advantages that are all 0, exactly.
- The advantages of one turn's baseline members sum to 0; a turn that fewer than two of them reached has none.
- A member outside of the baseline gets 0 and moves nobody.
- Turns are weighed as their trajectories' rewards are: what divides those divides these.
"""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from swe_rl.config.choices import Advantage
from swe_rl.config.schema import AlgoConfig


def to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """For each turn the sum of its reward and the later ones, each `discount` times less a turn later.

    The return of REINFORCE (Sutton and Barto, Reinforcement Learning, 2nd edition, section 13.3).
    """
    returns, later = [0.0] * len(rewards), 0.0
    for turn in reversed(range(len(rewards))):
        later = rewards[turn] + discount * later
        returns[turn] = later
    return returns


def turn_advantages(
    rewards: Sequence[Sequence[float]], in_baseline: Sequence[bool], algo: AlgoConfig, scale: float
) -> list[list[float]]:
    """One advantage for each turn of each member of a group; to be added to the trajectories' own.

    `rewards[i][t]` is what turn t of member i brought; `scale` what `group_scale` gives the group's own rewards. With G
    the return from a turn on, it is scale * (G - mean of G over the members that reached this turn), and with
    `algo.advantage=rloo` G less the mean of the others. That the advantage of a trajectory and that of a step add up is
    GiGPO's (arXiv:2505.10978, section 4), whose steps are compared by their state; here they are by their number, the
    baseline of policy gradients that depends on time (Peters and Schaal, "Reinforcement learning of motor skills with
    policy gradients", 2008, section 3.2).
    """
    returns = [to_go(member, algo.discount) for member in rewards]
    advantages = [[0.0] * len(member) for member in returns]
    for turn in range(max((len(member) for member in returns), default=0)):
        reached = [i for i, kept in enumerate(in_baseline) if kept and len(returns[i]) > turn]
        if len(reached) < 2:
            continue
        mean = fmean(returns[i][turn] for i in reached)
        factor = len(reached) / (len(reached) - 1) if algo.advantage is Advantage.rloo else scale
        for i in reached:
            advantages[i][turn] = factor * (returns[i][turn] - mean)
    return advantages


def gae(rewards: npt.ArrayLike, values: npt.ArrayLike, discount: float, gae_lambda: float) -> npt.NDArray[np.float64]:
    """One advantage for each token of one sequence, [tokens]; the sequence ends after its last token.

    `rewards[t]` is what token t brought, `values[t]` the critic's for the state that t was sampled in. With delta_t =
    r_t + discount * V_(t+1) - V_t it is the sum of (discount * gae_lambda)^l * delta_(t+l) (Generalized Advantage
    Estimation, arXiv:1506.02438, equation 16). Observations between two tokens take no time.
    """
    brought, known = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    deltas = brought + discount * np.append(known[1:], 0.0) - known
    advantages, later = np.zeros(len(deltas)), 0.0
    for token in reversed(range(len(deltas))):
        later = deltas[token] + discount * gae_lambda * later
        advantages[token] = later
    return advantages
