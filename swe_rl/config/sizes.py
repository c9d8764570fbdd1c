"""Numbers that follow from a configuration: GPUs, ranks, trajectories, tokens.

Invariants:
- Pure arithmetic over the schema; rules, plan and placement share it, so that they cannot disagree.
- Counts are of what their names say: prompts are instances, trajectories are prompts times `rollout.n`.
"""

from swe_rl.config.schema import Config, LayoutConfig


def engine_gpus(layout: LayoutConfig) -> int:
    """GPUs of all engines; a layout without trainer GPUs and with one colocated engine of width one uses none."""
    return 0 if uses_no_gpu(layout) else layout.engines * layout.engine_tp


def uses_no_gpu(layout: LayoutConfig) -> bool:
    """Everything in one process on the CPU: nothing to place."""
    return layout.colocated and layout.trainer_gpus == 0


def total_gpus(layout: LayoutConfig) -> int:
    """Colocated engines and trainer take turns on the same GPUs, otherwise each has its own."""
    if layout.colocated:
        return max(engine_gpus(layout), layout.trainer_gpus)
    return engine_gpus(layout) + layout.trainer_gpus


def data_parallel(layout: LayoutConfig) -> int:
    """Groups of trainer GPUs that each see their own sequences; 1 on the CPU."""
    return max(1, layout.trainer_gpus // max(1, layout.sequence_parallel))


def trajectories_per_step(config: Config) -> int:
    return config.rollout.prompts_per_step * config.rollout.n


def trajectories_per_mini_batch(config: Config) -> int:
    return config.trainer.prompts_per_mini_batch * config.rollout.n


def optimizer_steps_per_step(config: Config) -> int:
    return -(-config.rollout.prompts_per_step // max(1, config.trainer.prompts_per_mini_batch))


def max_tokens_per_step(config: Config) -> int:
    """Upper bound: every trajectory as long as it may be."""
    return trajectories_per_step(config) * config.rollout.max_trajectory_tokens


def divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def nearest_multiples(value: int, step: int) -> str:
    """`96 or 112` for 99 and 16."""
    low = value // step * step
    return f"{low} or {low + step}" if low else str(low + step)
