"""Rows by the age of the weights that sampled them.

Invariants:
- A row's age counts updates of the engines' weights since its oldest token, so a row of mixed weights counts as old.
- A row past the limit is not trained and enters no denominator; its trajectory's other rows stay.
- Without a limit nothing is masked.
"""

from collections.abc import Sequence
from dataclasses import replace

from swe_rl.algo.row import Row


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
