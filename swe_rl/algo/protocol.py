"""What somebody's own advantage and loss are given, and what they have to give.

Invariants:
- torch is not imported: rules and status pages read what is declared here.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RewardGroup:
    """The trajectories of one instance in one step, in the order of their samples; all dimensionless.

    `rewards` are after penalties, `graded` before them; None where infrastructure failed. `in_baseline`: who counts in
    a mean.
    """

    rewards: tuple[float | None, ...]
    in_baseline: tuple[bool, ...]
    graded: tuple[float | None, ...]

    @property
    def members(self) -> dict[int, float]:
        """The rewards that count, by their place."""
        pairs = enumerate(zip(self.rewards, self.in_baseline, strict=True))
        return {place: reward for place, (reward, counts) in pairs if counts and reward is not None}


class Advantage(Protocol):
    """`needs_group`: it compares the trajectories of a group, so that a group of one teaches nothing."""

    needs_group: bool = True

    @abstractmethod
    def advantages(self, groups: Sequence[RewardGroup]) -> Sequence[Sequence[float]]:
        """One finite number a member of each group, in their order; what is above 0 is made more likely."""
        ...


@dataclass(frozen=True, slots=True)
class LossTokens:
    """Each of shape [tokens], float32. Log-probabilities in nats.

    `logprobs` and `entropy` have a gradient, `entropy` only where algo.entropy_coef is not 0; the others are constants.
    `old_logprobs`: by the weights at the step's start. `rollout_logprobs`: by the engine that sampled.
    """

    logprobs: "Tensor"
    old_logprobs: "Tensor"
    rollout_logprobs: "Tensor"
    advantages: "Tensor"
    entropy: "Tensor"


class Loss(Protocol):
    """`needs_rollout_logprobs`: it reads `rollout_logprobs`, which rollout.capture=retokenize does not have.
    `needs_all_rows`: tokens of advantage 0 teach it something, too; else they are left out."""

    needs_rollout_logprobs: bool = False
    needs_all_rows: bool = False

    @abstractmethod
    def loss(self, tokens: LossTokens) -> "Tensor":
        """Shape [tokens], finite, with a gradient by way of `tokens.logprobs`; smaller is better."""
        ...
