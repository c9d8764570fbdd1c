"""What `job=sft` trains, in the trainer's own words: the same rows, mini-batches and loss as a step of training has.

Invariants:
- A step's demonstrations are one group, so one update; every one of their tokens has the advantage 1. The loss of
  `policy_loss=cispo` is then the mean of -log policy, the cross-entropy: a first update's ratio is 1.
- Pure; whoever asks for memory or time of a job asks for those of `trained(config)`. Of other jobs that is `config`.
"""

from dataclasses import replace
from typing import Any

from swe_rl.config.choices import LoraServing, PolicyLoss, RolloutMode, RoutingReplay
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import AlgoConfig, Config, LossConfig
from swe_rl.plan import duration, memory, sizes

SUPERVISED = AlgoConfig(name="sft", policy_loss=PolicyLoss.cispo)


def trained(config: Config) -> Config:
    """The configuration of the trainer that this job starts."""
    if Part.warm_start not in starts(config):
        return config
    sft = config.sft
    trainer = replace(
        config.trainer,
        steps=sft.steps + sft.beginner_steps,
        lr=sft.lr,
        warmup_steps=sft.warmup_steps,
        prompts_per_mini_batch=1,
        checkpoint_every_steps=sft.checkpoint_every_steps,
        lora_serving=LoraServing.merged,
        routing_replay=RoutingReplay.none,
        max_staleness_steps=0,
        eval_every_steps=0,
        seed=sft.seed,
    )
    rollout = replace(
        config.rollout,
        mode=RolloutMode.step,
        prompts_per_step=1,
        n=1,
        temperature=1.0,
        max_trajectory_tokens=sft.tokens_per_batch,
        typical_trajectory_tokens=sft.tokens_per_batch,
    )
    return replace(config, trainer=trainer, rollout=rollout, algo=SUPERVISED, loss=LossConfig())


def batch_rows(config: Config) -> dict[str, Any]:
    """Of `job=plan`, for a warm start."""
    sft = config.sft
    return {
        "updates": sft.steps + sft.beginner_steps,
        "updates_on_right_demonstrations": sft.steps,
        "updates_on_a_beginners": sft.beginner_steps,
        "tokens_per_update_at_least": sft.tokens_per_batch,
        "data_parallel_ranks": sizes.data_parallel(config.layout),
        "tokens_per_micro_batch_and_gpu": memory.tokens_per_gpu(trained(config)),
        "checkpoint_every_updates": sft.checkpoint_every_steps,
    }


def time_rows(config: Config) -> dict[str, Any]:
    """As `batch_rows`. A CPU's time is not estimated."""
    of_trainer = trained(config)
    update_s = duration.train_s(of_trainer)
    if not update_s:
        return {"update": "not estimated: no GPU, or its speed is not known"}
    run_s = duration.of_steps(of_trainer, update_s)
    return {
        "training_s_per_update": float(f"{update_s:.3g}"),
        "layers_compiled": "yes" if duration.compiles(of_trainer) else "no",
        "run": duration.text(run_s),
        "gpu_hours": float(f"{sizes.gpus_needed(config) * run_s / 3600:.3g}"),
        "time_limit": duration.text(duration.limit_s(config)) if config.hardware.time_limit_min else "none",
        "assuming": f"training reaches {duration.TRAIN_UTILIZATION:.0%} of a GPU's {config.hardware.gpu_bf16_tflops:g} "
        "TFLOPS",
    }
