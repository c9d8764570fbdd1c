"""This module says what `job=sft` trains, in the trainer's own words: the same rows, mini-batches and loss as a step of
training has.

Invariants:
- The examples of a step are one group, so one update; every one of their learned tokens has the advantage 1. The loss
  of `policy_loss=cispo` is then the mean of -log policy, the cross-entropy: a first update's ratio is 1.
- Keys that are null have the value that fits what is imitated: demonstrations from random weights, or data.
- Nothing here has effects. Memory and time of a job are those of `trained(config)`, which is `config` itself for other
  jobs.
"""

from dataclasses import dataclass, replace

from swe_rl.config.choices import LoraServing, PolicyLoss, RolloutMode, RoutingReplay
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import AlgoConfig, Config, LossConfig, SftConfig

SUPERVISED = AlgoConfig(name="sft", policy_loss=PolicyLoss.cispo)
_DEMONSTRATION_STEPS = 5000
_DEMONSTRATION_LR = 2e-3
_DATA_LR = 1e-5
_ADAPTER_LR = 2e-4
_MOST_WARMUP_STEPS = 50
_DEMONSTRATION_CHECKPOINT_STEPS = 500


@dataclass(frozen=True, slots=True)
class Updates:
    """Says how `job=sft` updates: the values of the keys that may be null.

    `steps` are those of the first stage, and `beginner_steps` those of the second one, which data does not have.
    """

    steps: int
    beginner_steps: int
    lr: float
    warmup_steps: int
    checkpoint_every_steps: int

    @property
    def total_steps(self) -> int:
        return self.steps + self.beginner_steps


def imitates_data(sft: SftConfig) -> bool:
    """Tells whether files are imitated, and not scripted demonstrations."""
    return bool(sft.data)


def steps_per_pass(sft: SftConfig, examples: int) -> int:
    """Returns the updates that one pass over so many examples takes."""
    return -(-examples // sft.examples_per_batch)


def updates_of(config: Config, examples: int | None = None) -> Updates:
    """Returns the updates of a job. `examples` is their number in `sft.data`, where it is known.

    Where it is not known and `sft.steps` is null, a pass counts as one update.
    """
    sft = config.sft
    if not imitates_data(sft):
        steps = sft.steps or _DEMONSTRATION_STEPS
        per_checkpoint = _DEMONSTRATION_CHECKPOINT_STEPS
        lr = _DEMONSTRATION_LR
        beginner_steps = sft.beginner_steps
    else:
        if examples is None:
            in_all = sft.epochs
        else:
            in_all = -(-sft.epochs * examples // sft.examples_per_batch)
        steps = sft.steps or in_all
        per_checkpoint = 1
        if examples is not None:
            per_checkpoint = steps_per_pass(sft, examples)
        lr = _ADAPTER_LR if config.trainer.lora_rank else _DATA_LR
        beginner_steps = 0
    return Updates(
        steps=steps,
        beginner_steps=beginner_steps,
        lr=lr if sft.lr is None else sft.lr,
        warmup_steps=min(_MOST_WARMUP_STEPS, steps // 10) if sft.warmup_steps is None else sft.warmup_steps,
        checkpoint_every_steps=per_checkpoint if sft.checkpoint_every_steps is None else sft.checkpoint_every_steps,
    )


def longest_example_tokens(config: Config) -> int:
    """Returns the length of the longest sequence that is trained."""
    if not imitates_data(config.sft):
        return config.sft.tokens_per_batch
    return min(config.sft.max_tokens, config.model.max_position_embeddings)


def trainer_config(config: Config, examples: int | None = None) -> Config:
    """Returns the configuration of the trainer that this job starts. `examples` is as in `updates_of`."""
    if Part.warm_start not in started_parts(config):
        return config
    sft = config.sft
    updates = updates_of(config, examples)
    trainer = replace(
        config.trainer,
        steps=updates.total_steps,
        lr=updates.lr,
        warmup_steps=updates.warmup_steps,
        prompts_per_mini_batch=1,
        checkpoint_every_steps=updates.checkpoint_every_steps,
        lora_serving=LoraServing.merged,
        routing_replay=RoutingReplay.none,
        max_staleness_steps=0,
        eval_every_steps=0,
        seed=sft.seed,
    )
    longest_tokens = longest_example_tokens(config)
    rollout = replace(
        config.rollout,
        mode=RolloutMode.step,
        prompts_per_step=1,
        n=sft.examples_per_batch if imitates_data(sft) else 1,
        temperature=1.0,
        max_trajectory_tokens=longest_tokens,
        typical_trajectory_tokens=longest_tokens,
    )
    return replace(config, trainer=trainer, rollout=rollout, algo=SUPERVISED, loss=LossConfig())
