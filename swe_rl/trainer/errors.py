"""What can go wrong while training."""

from swe_rl.errors import RunError, UserError


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
