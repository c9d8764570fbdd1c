"""Tells what rounding leaves over, where equal numbers are compared, from a real difference; nothing else does so.

Invariants:
- Residue is exactly 0 afterwards, so "teaches nothing" is `== 0` everywhere else: in rows, counts and mini-batches.
- A difference is measured against the terms that it was made of, never against a fixed number: rewards of a million and
  of a millionth are treated alike, and what is small but real stays as it is, to the bit.
"""

import numpy as np
import numpy.typing as npt

# Both are shares of the largest term. They are far above the rounding of sums of thousands of terms, and far below what
# anybody pays.
FLOAT64 = 2.0**-40
FLOAT32 = 2.0**-20


def without_residue(
    differences: npt.ArrayLike, terms: npt.ArrayLike, precision: float = FLOAT64
) -> npt.NDArray[np.float64]:
    """Returns the differences, with 0 in place of each that is at most `precision` of its term.

    `terms` is the size of the largest number that went into a difference, one for all or one for each. `precision` is
    what the numbers were computed in.
    """
    given = np.asarray(differences, np.float64)
    return np.where(np.abs(given) <= precision * np.abs(np.asarray(terms, np.float64)), 0.0, given)
