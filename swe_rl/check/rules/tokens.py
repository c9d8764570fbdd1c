"""Rules of lengths: prompt, turn, trajectory, engine, model, micro-batch.

Invariants:
- The chain is max_prompt + max_turn <= max_trajectory <= engine.max_model_len <= model.max_position_embeddings.
- `rollout.max_trajectory_tokens` counts the first prompt and everything after it.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, between, error
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config


@about(Part.rollouts)
def first_turn_fits(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    needed = rollout.max_prompt_tokens + rollout.max_turn_tokens
    if needed > rollout.max_trajectory_tokens:
        yield error(
            "first_turn",
            "rollout.max_trajectory_tokens",
            rollout.max_trajectory_tokens,
            f"a prompt of {rollout.max_prompt_tokens} and a turn of {rollout.max_turn_tokens} tokens need {needed}",
            f"rollout.max_trajectory_tokens={needed}, or a smaller rollout.max_turn_tokens",
        )


@between(Part.engines, Part.rollouts)
def engine_length(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.max_trajectory_tokens > config.engine.max_model_len:
        yield error(
            "engine_length",
            "engine.max_model_len",
            config.engine.max_model_len,
            f"shorter than rollout.max_trajectory_tokens={config.rollout.max_trajectory_tokens}: "
            "long trajectories would die in the engine",
            f"rollout.max_trajectory_tokens={config.engine.max_model_len}, or leave engine.max_model_len out",
        )


@about(Part.engines)
def model_length(config: Config, _: Host) -> Iterator[Finding]:
    positions = config.model.max_position_embeddings
    if config.engine.max_model_len > positions:
        yield error(
            "model_length",
            "engine.max_model_len",
            config.engine.max_model_len,
            f"{config.model.name} has {positions} positions",
            f"rollout.max_trajectory_tokens={positions} (engine.max_model_len follows it)",
        )


@about(Part.trainer)
def micro_batch_holds_one(config: Config, _: Host) -> Iterator[Finding]:
    cap, longest = config.trainer.max_tokens_per_micro_batch, config.rollout.max_trajectory_tokens
    share = -(-longest // max(1, config.layout.sequence_parallel))
    if 0 < cap < share:
        yield error(
            "micro_batch",
            "trainer.max_tokens_per_micro_batch",
            cap,
            f"one trajectory of {longest} tokens puts {share} on each GPU "
            f"(layout.sequence_parallel={config.layout.sequence_parallel})",
            f"trainer.max_tokens_per_micro_batch={share}",
        )


RULES = (first_turn_fits, engine_length, model_length, micro_batch_holds_one)
