"""Says what the loop asks of a trainer: `RankTrainer` in this process, or `TrainerGroup` for ranks beside it.

Invariants:
- There is one request at a time; each of them blocks its thread until it is done.
- After an error of `train_step` nothing more is asked but `close`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swe_rl.algo.row import Row
from swe_rl.config.choices import KlEstimator
from swe_rl.engine.transfer.sent_weights import SendsWeights
from swe_rl.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from swe_rl.trainer.checkpoint.folder import Checkpoint


class TrainerError(RunError):
    """A step could not be made: a malformed row, missing log-probabilities, or gradients that stay non-finite."""


class RankLost(TrainerError):
    """A rank was killed, does not answer, or failed by no error of ours: ranks that are started anew may do better."""

    def __init__(self, message: str, *, rank: int, reason: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason


class MeshError(UserError):
    """The ranks, or the model's heads, cannot be divided as the layout says."""


class CorruptionError(RunError):
    """Packed, sharded computation does not give the numbers of the plain one: training would learn from noise."""


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """One step. Log-probabilities, entropy and KL in nats; losses and gradient norms are means over the updates.

    - kl_loss: the weighted KL to the reference before `kl_coef`; 0 where that term is off.
    - kl_capped_fraction: tokens whose KL is at `algo.kl_cap`, where k3 has no gradient any more; None where nothing
      bounds the KL of the loss.
    - grad_norm: before clipping, over the applied updates; 0 without any.
    - kl_rollout: mean k3 of KL(engine || trainer) at the start of the step; None where the engine's log-probabilities
      are unknown. `logprob_diff_*` are of the absolute difference between the two.
    - entropy, kl_rollout, logprob_diff_mean: over all sampled tokens; measured_token_share of these were looked at.
    - clip_fraction_low, clip_fraction_high: tokens that the lower and the upper end of the clip hold (the dual clip is
      an upper end); clip_fraction has both. With `algo.policy_loss=gspo` all tokens of a trajectory are held together.
    - masked_fraction: tokens whose correction is 0, so that only KL and entropy train them.
    - stale_rows: those left out by `algo.max_staleness_steps`. staleness_mean and staleness_max are of the others that
      have trained tokens, in versions of the weights, of which each step makes one; None without any.
    - expert_load_max: of a mixture, the tokens of a layer's most used expert over an even share, mean over layers: 1 is
      even. expert_entropy: of tokens over a layer's experts, as a share of the largest: 1 is even. expert_unused_rate:
      the share of experts without a token. All over trained tokens; None of a dense model.
    - balance_loss: of the load over experts, before `algo.balance_coef`, mean over the updates: the number of
      experts a token passes where it is even. It comes on top of `loss`. None where that is off or nothing is trained.
    - routing_disagreement: of the experts that the engine sent trained tokens to, the share that the trainer's routers
      would not have chosen; None where the engine does not tell.
    - teacher_kl: mean of log policy - log teacher over trained tokens, with a teacher; value_loss, value_explained and
      critic_grad_norm: of a critic (`CriticMetrics`). None of the other algorithms.
    - trained_rows + skipped_rows = all rows; skipped are those masked as a whole or without advantage and other term.
    - updates: optimizer updates applied; nonfinite_updates: those dropped; repeated_updates: those whose gradient was
      finite only when it was computed again without cuDNN's attention, or not even then (`attention.without_cudnn`),
      the critic's among them;
      idle_updates: mini-batches without any gradient (masked as a whole), which move neither weights nor moments.
    """

    step: int
    loss: float
    policy_loss: float
    kl_loss: float
    kl_capped_fraction: float | None
    entropy: float | None
    grad_norm: float
    clip_fraction: float
    clip_fraction_low: float
    clip_fraction_high: float
    kl_rollout: float | None
    logprob_diff_mean: float | None
    logprob_diff_max: float | None
    ratio_mean: float | None
    ratio_min: float | None
    ratio_max: float | None
    correction_mean: float | None
    masked_fraction: float
    expert_load_max: float | None
    expert_entropy: float | None
    expert_unused_rate: float | None
    balance_loss: float | None
    teacher_kl: float | None
    value_loss: float | None
    value_explained: float | None
    critic_grad_norm: float | None
    routing_disagreement: float | None
    stale_rows: int
    staleness_mean: float | None
    staleness_max: int | None
    trained_rows: int
    trained_tokens: int
    measured_token_share: float | None
    skipped_rows: int
    lr: float
    updates: int
    nonfinite_updates: int
    repeated_updates: int
    idle_updates: int
    train_s: float


class TrainsPolicy(SendsWeights, Protocol):
    def start(self) -> None:
        """Returns once it can be asked. Raises UserError, TrainerError, and leaves nothing running then."""
        ...

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> TrainMetrics:
        """Updates the policy from all rows of a step. `lr` None stands for `trainer.lr`, warmed up. Raises
        TrainerError.
        """
        ...

    def forget_moments(self) -> None:
        """Begins the optimizer anew, with the weights as they are."""
        ...

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator) -> dict[str, float]:
        """Returns the KL to the reference in nats, summed over each trajectory's sampled tokens."""
        ...

    def row_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Returns log-probabilities in nats at temperature 1 of each row's trained tokens, under the weights of now."""
        ...

    def weights(self) -> "Mapping[str, Tensor]":
        """Returns the weights for the engines, under the hub's names, tied weights once. They can write files
        themselves.
        """
        ...

    def save(
        self,
        folder: Path,
        *,
        step: int,
        weight_version: int,
        data_order: Any,
        config: Mapping[str, Any],
        hash_of_config: str,
        keep: int,
    ) -> Path:
        """Begins a checkpoint below `folder`, which is there once `wait` returns. Raises CheckpointWriteError."""
        ...

    def wait(self) -> None:
        """Returns once what is being written is there. Raises CheckpointWriteError."""
        ...

    def load(self, folder: Path, expected_config_hash: str | None = None) -> "Checkpoint":
        """Goes on from a checkpoint of any kind and number of ranks; the result's tensors may be empty.

        Raises CorruptCheckpointError.
        """
        ...

    def failure(self) -> Exception | None:
        """Returns what ended it behind the loop's back, or None while all is well."""
        ...

    def close(self) -> None:
        """Leaves nothing running. May be called twice."""
        ...
