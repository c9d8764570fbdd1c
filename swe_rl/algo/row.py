"""Defines one training sequence, as the trainer takes it, and sorts rows by the age of the weights that sampled them.

Invariants:
- What grows with tokens is in arrays: a token of a row takes 9 bytes, and 8 to 12 more where it was sampled.
- A row's age counts versions of the weights (one a step) since its oldest token: a row of mixed weights counts as old.
- A row past the limit is not trained and enters no denominator; its trajectory's other rows stay.
- Without a limit nothing is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

# These are ids of tokens.
Ids = npt.NDArray[np.int32]
# These are versions of weights, one a sampled token.
Versions = npt.NDArray[np.int32]
# These are nats.
Logprobs = npt.NDArray[np.float32]
# These belong to what was sampled.
PerToken = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
# [tokens, layers, experts of a token]: swe_rl/model/experts.py says how.
Routes = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
# A log-probability may be this far above 0 by rounding: a log-softmax in float32 or bfloat16 ends there at large
# logits. It is taken for 0, whatever engine it is from; what is higher is no log-probability.
ROUNDING_NATS = 1e-3


def find_unsound_logprob(logprobs: Sequence[float] | Logprobs) -> int | None:
    """Returns the place of the first that is not finite, or above 0 by more than rounding, or None."""
    values = np.asarray(logprobs, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values <= ROUNDING_NATS)))
    if len(wrong):
        return int(wrong[0])
    return None


def same_fields(record: object, other: object) -> bool:
    """Tells whether two records of one dataclass hold the same, arrays entry by entry."""
    if type(record) is not type(other):
        return False
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    return all(_same_value(getattr(record, name), getattr(other, name)) for name in names)


def _same_value(value: object, other: object) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    return type(value) is type(other) and value == other


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The ids of one sequence with a mask over what the policy sampled.

    `token_ids`, `loss_mask` and `rollout_logprobs` have one entry a token; where the mask is false the log-probability
    is 0.0. `rollout_logprobs` are over the whole vocabulary, and None under `rollout.capture=retokenize`. `advantage`
    and `weight_versions` have one entry a sampled token, in their order. A trajectory that was split into several rows
    shares one `trajectory_id`: together its rows weigh as one sequence. Sequences of other types become arrays, and a
    number that is given for `advantage` is that of every sampled token. `rewards` are what each sampled token brought,
    for `algo.advantage=gae` alone, whose critic makes advantages of them. `turns` has the number of the turn that
    sampled each token; None where it is not known. `routes` are
    the experts that the engine sent each token to but the last one; None where they are not known. `segment` is
    the number of the segment in its trajectory. Two rows are equal where all entries are.
    """

    trajectory_id: str
    group_id: str
    token_ids: Ids
    loss_mask: Mask
    rollout_logprobs: Logprobs | None
    advantage: PerToken
    weight_versions: Versions
    trained: bool = True
    rewards: PerToken | None = None
    turns: Ids | None = None
    routes: Routes | None = None
    segment: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", np.asarray(self.token_ids, np.int32))
        object.__setattr__(self, "loss_mask", np.asarray(self.loss_mask, np.bool_))
        advantage = np.asarray(self.advantage, np.float32)
        object.__setattr__(
            self, "advantage", advantage if advantage.ndim else fill_sampled(float(advantage), self.loss_mask)
        )
        object.__setattr__(self, "weight_versions", np.asarray(self.weight_versions, np.int32))
        for name, kind in (("rollout_logprobs", np.float32), ("rewards", np.float32), ("turns", np.int32)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), kind))

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def teaches(self) -> bool:
        """True where any token has an advantage."""
        return bool(self.advantage.any())

    @property
    def sampled_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    @property
    def trained_tokens(self) -> int:
        if self.trained:
            return self.sampled_tokens
        return 0

    @property
    def oldest_version(self) -> int:
        """The oldest version of the weights that sampled. Raises ValueError where nothing was sampled."""
        return int(self.weight_versions.min())


def fill_sampled(value: float, loss_mask: Mask) -> PerToken:
    """Returns `value` for each sampled token."""
    return np.full(np.count_nonzero(loss_mask), value, np.float32)


def age_steps(row: Row, version: int) -> int:
    """Returns how many versions the trainer's weights are ahead of those of the row's oldest token; at least 0."""
    if len(row.weight_versions):
        return max(0, version - row.oldest_version)
    return 0


def without_old(rows: Sequence[Row], version: int, limit_steps: int | None) -> list[Row]:
    """Returns all rows, those of an age above `limit_steps` as untrained; None: no limit.

    It is the bound on staleness of AReaL (arXiv:2505.24298, section 5.1), applied to what is trained instead of to what
    is sampled.
    """
    if limit_steps is None:
        return list(rows)
    return [replace(row, trained=False) if age_steps(row, version) > limit_steps else row for row in rows]
