"""What the loop asks of a trainer, whether it is in this process (`RankTrainer`) or ranks beside it (`TrainerGroup`).

Invariants:
- One request at a time; each of them blocks its thread until it is done.
- After an error of `train_step` nothing more is asked but `close`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swe_rl.algo.row import Row
from swe_rl.config.choices import KlEstimator
from swe_rl.engine.transfer.protocol import SendsWeights
from swe_rl.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from swe_rl.trainer.checkpoint.folder import Checkpoint
    from swe_rl.trainer.metrics import TrainMetrics


class TrainerError(RunError):
    """A step could not be made: a malformed row, missing log-probabilities, or gradients that stay non-finite."""


class RankLost(TrainerError):
    """A rank was killed, does not answer, or failed by no error of ours: ranks that are started anew may do better."""

    def __init__(self, message: str, *, rank: int, reason: str) -> None:
        super().__init__(message)
        self.rank, self.reason = rank, reason


class MeshError(UserError):
    """The ranks, or the model's heads, cannot be divided as the layout says."""


class CorruptionError(RunError):
    """Packed, sharded computation does not give the numbers of the plain one: training would learn from noise."""


class TrainsPolicy(SendsWeights, Protocol):
    def start(self) -> None:
        """Returns once it can be asked. Raises UserError, TrainerError, and leaves nothing running then."""
        ...

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> "TrainMetrics":
        """Updates the policy from all rows of a step; `lr` None: with `trainer.lr`, warmed up. Raises TrainerError."""
        ...

    def forget_moments(self) -> None:
        """The optimizer begins anew, with the weights as they are."""
        ...

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator) -> dict[str, float]:
        """KL to the reference in nats, summed over each trajectory's sampled tokens."""
        ...

    def row_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probabilities in nats at temperature 1 of each row's trained tokens, under the weights of now."""
        ...

    def weights(self) -> "Mapping[str, Tensor]":
        """For the engines, under the hub's names; tied weights once. They can write themselves (`WritesFiles`)."""
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
        """A checkpoint below `folder`, there at the latest once `wait` returns. Raises CheckpointWriteError."""
        ...

    def wait(self) -> None:
        """Until what is being written is there. Raises CheckpointWriteError."""
        ...

    def load(self, folder: Path, expected_config_hash: str | None = None) -> "Checkpoint":
        """Goes on from a checkpoint of any kind and number of ranks; the result's tensors may be empty.

        Raises CorruptCheckpointError.
        """
        ...

    def failure(self) -> Exception | None:
        """What ended it behind the loop's back; None while all is well."""
        ...

    def close(self) -> None:
        """Leaves nothing running. May be called twice."""
        ...
