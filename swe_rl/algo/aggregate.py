"""How the losses of single tokens become the loss of a mini-batch.

Invariants:
- The loss is the sum over tokens of weight * token loss; the weights are computed once, over the whole mini-batch.
  Any split into micro-batches therefore gives the same loss and the same gradient.
- In every mode all trained tokens of a row weigh the same, so one number a row says it all.
- A trajectory that was split into several rows counts as one sequence.
- Rows without trained tokens weigh 0 and enter no denominator; rows whose advantage is 0 do enter it.
"""

from collections import Counter
from collections.abc import Sequence

from swe_rl.config.choices import LossAggregation


def row_weights(
    trained_tokens: Sequence[int], trajectory_ids: Sequence[str], mode: LossAggregation, loss_norm_tokens: int
) -> list[float]:
    """The weight of each trained token of each row of one mini-batch.

    With T trained tokens in all, N trajectories that have any, and T_i those of trajectory i:

    - token_mean: 1 / T (DAPO, arXiv:2503.14476, section 3.3).
    - sequence_mean: 1 / (N * T_i) (GRPO, arXiv:2402.03300, equation 3).
    - sequence_sum_norm: 1 / (N * loss_norm_tokens) (Dr. GRPO, arXiv:2503.20783, section 3.2).

    Raises ValueError where the lengths differ or `loss_norm_tokens` is not positive.
    """
    if len(trained_tokens) != len(trajectory_ids):
        raise ValueError(f"{len(trained_tokens)} token counts, but {len(trajectory_ids)} trajectory ids")
    if loss_norm_tokens < 1:
        raise ValueError(f"loss_norm_tokens must be positive, not {loss_norm_tokens}")
    per_trajectory: Counter[str] = Counter()
    for tokens, trajectory_id in zip(trained_tokens, trajectory_ids, strict=True):
        per_trajectory[trajectory_id] += tokens
    sequences = sum(1 for tokens in per_trajectory.values() if tokens > 0)
    total = sum(trained_tokens)

    def weight(trajectory_id: str) -> float:
        if mode is LossAggregation.token_mean:
            return 1.0 / total
        if mode is LossAggregation.sequence_mean:
            return 1.0 / (sequences * per_trajectory[trajectory_id])
        return 1.0 / (sequences * loss_norm_tokens)

    pairs = zip(trained_tokens, trajectory_ids, strict=True)
    return [weight(trajectory_id) if tokens > 0 else 0.0 for tokens, trajectory_id in pairs]
