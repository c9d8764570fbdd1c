"""One training sequence, as the trainer takes it."""

from dataclasses import dataclass


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
