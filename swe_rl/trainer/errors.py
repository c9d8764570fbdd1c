"""What can go wrong while training."""

from swe_rl.errors import RunError


class TrainerError(RunError):
    """A step could not be made: a malformed row, missing log-probabilities, or gradients that stay non-finite."""
