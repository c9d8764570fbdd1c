"""Declares what somebody's own advantage and loss are given, and what they have to give.

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
    """The trajectories of one instance in one step, in the order of their samples.

    `rewards` are after penalties, `graded` before them; None where infrastructure failed. `in_baseline` says who counts
    in a mean. A run fills in all of what follows; a group that a test makes may leave it out.
    """

    rewards: tuple[float | None, ...]
    in_baseline: tuple[bool, ...]
    graded: tuple[float | None, ...]
    # The tokens of each trajectory that the policy sampled, which are what is trained.
    sampled_tokens: tuple[int, ...] = ()
    # These are all tokens after the first prompt: sampled ones and what tools said.
    response_tokens: tuple[int, ...] = ()
    # These are the policy's answers.
    turns: tuple[int, ...] = ()
    trajectory_ids: tuple[str, ...] = ()  # The names of the trajectories.
    instance_id: str = ""  # The name of the instance.
    # This is the step that trains them.
    step: int = 0

    @property
    def members(self) -> dict[int, float]:
        """The rewards that count, by their place."""
        pairs = enumerate(zip(self.rewards, self.in_baseline, strict=True))
        return {place: reward for place, (reward, counts) in pairs if counts and reward is not None}


class Advantage(Protocol):
    """Somebody's own advantage. `needs_group` says that it compares a group, so that a group of one teaches nothing."""

    needs_group: bool = True

    @abstractmethod
    def advantages(self, groups: Sequence[RewardGroup]) -> Sequence[Sequence[float]]:
        """Returns one finite number a member of each group, in their order; what is above 0 is made more likely."""
        ...


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The tokens of one micro-batch, each of shape [tokens], float32. Log-probabilities are in nats.

    `logprobs` and `entropy` have a gradient, `entropy` only where algo.entropy_coef is not 0; the others are constants.
    `old_logprobs` are by the weights at the step's start, `rollout_logprobs` by the engine that sampled. All are over
    the whole vocabulary at the rollouts' temperature, also where rollout.top_p, top_k or min_p left tokens out. A call
    has the tokens of one micro-batch: those of a trajectory may be in several, and on several ranks.
    """

    logprobs: "Tensor"
    old_logprobs: "Tensor"
    rollout_logprobs: "Tensor"
    advantages: "Tensor"  # The advantage of each token, without the correction's weights.
    entropy: "Tensor"
    # These are by the reference model; None where there is none: see `needs_reference_logprobs`.
    reference_logprobs: "Tensor | None" = None
    # This int64 numbers the token's trajectory among those of its mini-batch, all micro-batches and ranks together.
    sequences: "Tensor | None" = None
    # This is the mean of `sequence_terms` over all tokens of the token's trajectory; None without `needs_sequences`.
    sequence_means: "Tensor | None" = None


class Loss(Protocol):
    """Somebody's own loss, and what it needs.

    - `needs_rollout_logprobs`: it reads `rollout_logprobs`, which rollout.capture=retokenize does not have.
    - `needs_reference_logprobs`: it reads `reference_logprobs`, and algo.kl_coef=0 loads no reference model.
    - `needs_all_rows`: tokens of advantage 0 teach it something, too; else they are left out.
    - `needs_sequences`: it reads `sequence_means`, and `sequence_terms` is asked before each update.
    """

    needs_rollout_logprobs: bool = False
    needs_reference_logprobs: bool = False
    needs_all_rows: bool = False
    needs_sequences: bool = False

    @abstractmethod
    def loss(self, tokens: LossTokens) -> "Tensor":
        """Returns shape [tokens], finite, with a gradient by way of `tokens.logprobs`; smaller is better."""
        ...

    def sequence_terms(self, tokens: LossTokens) -> "Tensor":
        """Returns shape [tokens], finite, without a gradient: `loss` needs its mean over a whole trajectory.

        `tokens.logprobs` are by the weights before the update. The entropy is not known here: it is NaN.
        """
        return tokens.logprobs - tokens.old_logprobs
