"""One training sequence, as the trainer takes it, and rows by the age of the weights that sampled them.

Invariants:
- A row's age counts updates of the engines' weights since its oldest token, so a row of mixed weights counts as old.
- A row past the limit is not trained and enters no denominator; its trajectory's other rows stay.
- Without a limit nothing is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Row:
    """Ids of one sequence with a mask over what the policy sampled.

    `token_ids`, `loss_mask` and `rollout_logprobs` have one entry a token; where the mask is 0 the log-probability
    is 0.0. `rollout_logprobs` is None under `rollout.capture=retokenize`. `weight_versions` is the oldest and newest
    policy that sampled in it. A trajectory that was split into several rows shares one `trajectory_id`: together
    its rows weigh as one sequence.
    """

    trajectory_id: str
    group_id: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    rollout_logprobs: tuple[float, ...] | None
    advantage: float
    weight_versions: tuple[int, int]
    trained: bool = True

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask) if self.trained else 0


def age_steps(row: Row, version: int) -> int:
    """How many versions the trainer's weights are ahead of those that sampled the row's oldest token; at least 0."""
    return max(0, version - row.weight_versions[0])


def without_old(rows: Sequence[Row], version: int, limit_steps: int | None) -> list[Row]:
    """All rows, those of an age above `limit_steps` as untrained; None: no limit.

    The bound on staleness of AReaL (arXiv:2505.24298, section 5.1), applied to what is trained instead of to what is
    sampled.
    """
    if limit_steps is None:
        return list(rows)
    return [replace(row, trained=False) if age_steps(row, version) > limit_steps else row for row in rows]
