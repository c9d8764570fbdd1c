"""Estimates of time: a step's rollouts, training, weight update; what they assume is said with them.

Invariants:
- Pure arithmetic; good for telling minutes from days. What rollouts take is a bound here, for rules; `job=plan` gives
  the time that `job=simulate` finds.
"""

from math import inf

from swe_rl.config.schema import Config
from swe_rl.plan import memory, sizes
from swe_rl.plan.rollout_bound import bound_s

TRAIN_UTILIZATION = 0.35  # share of the published bfloat16 rate that a training step reaches
RECOMPUTE = 4 / 3  # activation checkpointing does the forward pass twice
SYNC_GB_PER_S = 20.0  # weights from the trainer to the engines, all of it, packing and loading included
START_S = 300.0  # engines, model, first sandboxes
DISK_GB_PER_S = 1.0


def rollout_s(config: Config) -> float:
    """One step's rollouts at least: as the engines' speed has it, and as long as a trajectory is said to take."""
    return max(bound_s(config), stated_s(config))


def stated_s(config: Config) -> float:
    """One step's rollouts as full waves of what a trajectory is said to take; 0 where nothing is said."""
    return sizes.waves_per_step(config) * (config.rollout.typical_trajectory_s or 0.0)


def train_s(config: Config) -> float:
    """Forward and backward over one step's tokens; 0 where nothing is known about the GPUs."""
    rate = config.layout.trainer_gpus * config.hardware.gpu_bf16_tflops * 1e12 * TRAIN_UTILIZATION
    if rate <= 0:
        return 0.0
    tokens = sizes.trajectories_per_step(config) * config.rollout.typical_trajectory_tokens
    return _flops(config, tokens) / rate


def _flops(config: Config, tokens: float) -> float:
    passes = 6 * (RECOMPUTE if config.trainer.activation_checkpointing else 1)
    return passes * config.model.active_params_b * 1e9 * tokens


def micro_batch_s(config: Config) -> float:
    """Forward and backward over one micro-batch on one GPU; 0 where nothing is known about the GPUs."""
    rate = config.hardware.gpu_bf16_tflops * 1e12 * TRAIN_UTILIZATION
    if rate <= 0:
        return 0.0
    return _flops(config, memory.tokens_per_gpu(config)) / rate


def sync_s(config: Config) -> float:
    return 0.0 if sizes.uses_no_gpu(config.layout) else memory.weights_gb(config.model) / SYNC_GB_PER_S


def step_s(config: Config, rollouts_s: float | None = None) -> float:
    """One synchronous step; an asynchronous one takes as long as its longer half. Without `rollouts_s`: at least."""
    apart = config.trainer.max_staleness_steps > 0 and not sizes.takes_turns(config)
    work = (rollout_s(config) if rollouts_s is None else rollouts_s, train_s(config) + sync_s(config))
    return max(work) if apart else sum(work)


def first_checkpoint_s(config: Config) -> float:
    """From the start until something is kept: what a time limit must at least hold."""
    steps = config.trainer.checkpoint_every_steps or config.trainer.steps
    start = 0.0 if sizes.uses_no_gpu(config.layout) else START_S
    return start + min(steps, config.trainer.steps) * step_s(config) + memory.checkpoint_gb(config) / DISK_GB_PER_S


def run_s(config: Config, rollouts_s: float | None = None) -> float:
    start = 0.0 if sizes.uses_no_gpu(config.layout) else START_S
    return start + config.trainer.steps * step_s(config, rollouts_s)


def limit_s(config: Config) -> float:
    """What the scheduler gives the job; infinite where hardware.time_limit_min is 0."""
    return config.hardware.time_limit_min * 60 or inf


def text(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if size >= 3600 else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
