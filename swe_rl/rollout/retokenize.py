"""The old way, as a baseline: render the final messages once and train on those ids.

Invariants:
- No log-probabilities: a row's `rollout_logprobs` is None.
- The traces are captured underneath all the same, so that the mismatch is measured and not guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.algo.row import Row
from swe_rl.gateway.trace import Trace


@dataclass(frozen=True, slots=True)
class Rendered:
    """A whole conversation as ids, with the spans of the assistant's messages (end token included)."""

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    def row(self, *, trajectory_id: str, group_id: str, advantage: float, trained: bool, version: int) -> Row:
        mask = [0] * len(self.token_ids)
        for start, end in self.spans:
            mask[start:end] = [1] * (end - start)
        return Row(
            trajectory_id=trajectory_id,
            group_id=group_id,
            token_ids=self.token_ids,
            loss_mask=tuple(mask),
            rollout_logprobs=None,
            advantage=advantage,
            weight_versions=(version, version),
            trained=trained,
        )


@dataclass(slots=True)
class Mismatch:
    """Counts over trajectories; rates are derived."""

    trajectories: int = 0
    trajectories_differing: int = 0
    turns: int = 0
    turns_differing: int = 0
    tokens: int = 0
    tokens_differing: int = 0

    def add(self, rendered: Rendered, traces: Sequence[Trace]) -> bool:
        """A turn differs when its sampled ids, or the context in front of them, are not the rendered ones.

        Returns whether any turn does.
        """
        differing = 0
        for number, trace in enumerate(traces):
            start, end = rendered.spans[number] if number < len(rendered.spans) else (0, 0)
            same_context = rendered.token_ids[:start] == trace.prompt_ids
            span = rendered.token_ids[start:end]
            self.tokens_differing += _differing(span, trace.sampled_ids)
            self.tokens += len(trace.sampled_ids)
            differing += not (same_context and span == trace.sampled_ids)
        self.turns += len(traces)
        self.turns_differing += differing
        self.trajectories += 1
        self.trajectories_differing += bool(differing)
        return differing > 0

    def rates(self) -> dict[str, float]:
        return {
            "mismatch_trajectory_rate": self.trajectories_differing / max(1, self.trajectories),
            "mismatch_turn_rate": self.turns_differing / max(1, self.turns),
            "mismatch_token_rate": self.tokens_differing / max(1, self.tokens),
        }


def _differing(rendered: Sequence[int], sampled: Sequence[int]) -> int:
    """Sampled tokens that are not at their place in the rendered span."""
    same = sum(old == new for old, new in zip(rendered, sampled, strict=False))
    return len(sampled) - same
