"""What `rollout.concurrency` says: a number of trajectories, or that the run looks for it itself.

Invariants:
- A number counts as it is; for `auto` there is a most, which rules, plan and run share.
"""

from dataclasses import dataclass

from swe_rl.config.choices import RolloutMode
from swe_rl.config.schema import Config


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ends of the number of trajectories under way, and where it starts."""

    least: int
    most: int
    start: int


# Agents wait for their tools: with twice as many trajectories as an engine has sequences, it is hardly ever short of
# work. `rollout.concurrency=auto` looks no further.
PROGRAMS_PER_SEQUENCE = 2
AUTO = "auto"


def adapts_concurrency(config: Config) -> bool:
    """Tells whether the run itself looks for the number of trajectories under way."""
    return not isinstance(config.rollout.concurrency, int)


def most_concurrent(config: Config, *, of_steps: bool) -> int:
    """Returns `rollout.concurrency`; for `auto` the most that it may grow to: as many as the engines can make use of.
    With `of_steps` there are no more than the steps that are sampled at once have."""
    stated = config.rollout.concurrency
    if isinstance(stated, int):
        return stated
    most = PROGRAMS_PER_SEQUENCE * max(1, config.layout.engines) * config.engine.max_num_seqs
    if of_steps:
        ahead = 0
        if config.rollout.mode is RolloutMode.stream:
            ahead = max(1, config.trainer.max_staleness_steps)
        most = min(most, (1 + ahead) * config.rollout.prompts_per_step * config.rollout.n)
    return max(1, most)
