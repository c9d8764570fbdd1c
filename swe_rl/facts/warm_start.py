"""This module says what `job=sft` trains, in the trainer's own words: the same rows, mini-batches and loss as a step of
training has.

Invariants:
- A step's demonstrations are one group, so one update; every one of their tokens has the advantage 1. The loss of
  `policy_loss=cispo` is then the mean of -log policy, the cross-entropy: a first update's ratio is 1.
- Nothing here has effects. Memory and time of a job are those of `trained(config)`, which is `config` itself for other
  jobs.
"""

from dataclasses import replace

from swe_rl.config.choices import LoraServing, PolicyLoss, RolloutMode, RoutingReplay
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import AlgoConfig, Config, LossConfig

SUPERVISED = AlgoConfig(name="sft", policy_loss=PolicyLoss.cispo)


def trainer_config(config: Config) -> Config:
    """Returns the configuration of the trainer that this job starts."""
    if Part.warm_start not in started_parts(config):
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
