"""Gives credit below the trajectory: to turns, against the same turns of their group, and to tokens.

Credit of tokens comes from a critic or a teacher.

Invariants:
- A reward counts for what was done up to it, never for what came after.
- Rewards that are all 0, or equal but for rounding, give advantages that are all 0, exactly.
- The advantages of one turn's baseline members sum to 0; a turn that fewer than two of them reached has none.
- A member outside of the baseline gets 0 and moves nobody.
- Turns are weighed as their trajectories' rewards are: what divides those divides these.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from swe_rl.algo.advantage import others_factor
from swe_rl.algo.residue import FLOAT32, without_residue
from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig


def to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Returns for each turn the sum of its reward and the later ones, each `discount` times less a turn later.

    It is the return of REINFORCE (Sutton and Barto, Reinforcement Learning, 2nd edition, section 13.3).
    """
    returns = [0.0] * len(rewards)
    later = 0.0
    for turn in reversed(range(len(rewards))):
        later = rewards[turn] + discount * later
        returns[turn] = later
    return returns


def turn_advantages(
    rewards: Sequence[Sequence[float]], in_baseline: Sequence[bool], algo: AlgoConfig, scale: float
) -> list[list[float]]:
    """Returns one advantage for each turn of each member of a group, to be added to the trajectories' own.

    `rewards[i][t]` is what turn t of member i brought; `scale` what `group_scale` gives the group's own rewards. With G
    the return from a turn on, it is scale * (G - mean of G over the members that reached this turn), and with
    `algo.advantage=rloo` scale * (G - mean of the others). That the advantage of a trajectory and that of a step add up
    is GiGPO's (arXiv:2505.10978, section 4), whose steps are compared by their state; here they are by their number,
    the baseline of policy gradients that depends on time (Peters and Schaal, "Reinforcement learning of motor skills
    with policy gradients", 2008, section 3.2).
    """
    returns = [to_go(member, algo.discount) for member in rewards]
    sizes = [to_go([abs(reward) for reward in member], algo.discount) for member in rewards]
    advantages = [[0.0] * len(member) for member in returns]
    for turn in range(max((len(member) for member in returns), default=0)):
        reached = [i for i, kept in enumerate(in_baseline) if kept and len(returns[i]) > turn]
        # Where one member alone reached a turn, its mean is its own return, and the difference says nothing.
        if len(reached) < 2:
            continue
        mean = fmean(returns[i][turn] for i in reached)
        factor = scale * others_factor(len(reached), algo)
        largest = max(sizes[i][turn] for i in reached)
        compared = without_residue([returns[i][turn] - mean for i in reached], largest)
        for i, difference in zip(reached, compared.tolist(), strict=True):
            advantages[i][turn] = factor * difference
    return advantages


def of_turns(advantage: float, turn_advantages: Sequence[float]) -> npt.NDArray[np.float64]:
    """Returns the advantage of each turn's tokens, [turns]: the trajectory's and the turn's own together."""
    of_turn = np.asarray(turn_advantages, np.float64)
    return without_residue(advantage + of_turn, np.maximum(np.abs(of_turn), abs(advantage)))


def gae(rewards: npt.ArrayLike, values: npt.ArrayLike, discount: float, gae_lambda: float) -> npt.NDArray[np.float64]:
    """Returns one advantage for each token of one sequence, [tokens]; the sequence ends after its last token.

    `rewards[t]` is what token t brought, `values[t]` the critic's for the state that t was sampled in. With delta_t =
    r_t + discount * V_(t+1) - V_t it is the sum of (discount * gae_lambda)^l * delta_(t+l) (Generalized Advantage
    Estimation, arXiv:1506.02438, equation 16). Observations between two tokens take no time.
    """
    brought = np.asarray(rewards, np.float64)
    known = np.asarray(values, np.float64)
    deltas = brought + discount * np.append(known[1:], 0.0) - known
    advantages = np.zeros(len(deltas))
    later = 0.0
    for token in reversed(range(len(deltas))):
        later = deltas[token] + discount * gae_lambda * later
        advantages[token] = later
    return advantages


def with_teacher_advantages(
    rows: Sequence[Row], trained: Sequence[Row], gaps: Sequence[npt.NDArray[np.float64]]
) -> list[Row]:
    """Returns all rows; the advantage of those that are `trained` is the gap log teacher - log policy at each token.

    It is less the reverse KL by the token that was sampled. Its policy gradient is that of KL(policy || teacher) at
    this token alone, later ones left out ("On-Policy Distillation", Thinking Machines Lab, 2025; reverse KL on the
    student's own samples: MiniLLM, arXiv:2306.08543, section 2.1). A gap in nats is a share of a probability: float32
    does not know a smaller one than its own.
    """
    advantages = {
        id(row): without_residue(gap, 1.0, FLOAT32).astype(np.float32) for row, gap in zip(trained, gaps, strict=True)
    }
    return [replace(row, advantage=advantages[id(row)]) if id(row) in advantages else row for row in rows]
