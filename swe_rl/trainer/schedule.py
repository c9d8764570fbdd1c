"""Learning-rate factors as pure functions of the number of steps already made.

Invariants:
- The unit is the trainer's step, not the mini-batch: the curve does not depend on `prompts_per_mini_batch`.
- The first step of a warm-up already has a positive rate; after `warmup_steps` steps the factor is 1.
"""

import math
from enum import StrEnum


class Decay(StrEnum):
    cosine = "cosine"
    linear = "linear"


def warmup_factor(steps_done: int, warmup_steps: int) -> float:
    """min(1, (steps_done + 1) / warmup_steps); 1 without a warm-up."""
    return 1.0 if warmup_steps <= 0 else min(1.0, (steps_done + 1) / warmup_steps)


def decay_factor(steps_done: int, warmup_steps: int, total_steps: int, decay: Decay) -> float:
    """Warm-up, then from 1 towards 0 at `total_steps` along half a cosine or a line."""
    if steps_done < warmup_steps:
        return warmup_factor(steps_done, warmup_steps)
    progress = min(1.0, (steps_done - warmup_steps) / max(1, total_steps - warmup_steps))
    if decay is Decay.cosine:
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - progress
