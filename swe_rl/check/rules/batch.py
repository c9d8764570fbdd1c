"""Rules of batches and lengths check the arithmetic of prompts, trajectories, mini-batches, ranks and their tokens, and
that lengths leave room for `rollout.compaction`.

Invariants:
- Each rule yields at most one finding for one cause.
- The chain is max_prompt + max_turn <= max_trajectory <= engine.max_model_len <= model.max_position_embeddings.
- `rollout.max_trajectory_tokens` counts the first prompt and everything after it, up to a compaction.
"""

import math
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import COMPARES_NOTHING, CompactionKind, ExtensionKind, InstanceChoice
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.extension.find import is_foreign
from swe_rl.facts.sizes import (
    compaction_tokens,
    data_parallel,
    divisors_of,
    nearest_multiples,
    trained_instances,
    trajectories_per_mini_batch,
)

# A shorter summary says too little to go on with, and a limit cuts most of them.
_LEAST_SUMMARY_TOKENS = 64
# A tiny tokenizer makes so many characters of plain words a token, and others make more.
_REQUEST_CHARS_PER_TOKEN = 2


@rule_about(Part.trainer)
def group_size(config: Config, _: Host) -> Iterator[Finding]:
    if is_foreign(config, ExtensionKind.advantage):  # it says itself what it needs
        return
    if config.rollout.n == 1 and config.algo.advantage not in COMPARES_NOTHING:
        yield error(
            "group_size",
            "rollout.n",
            "advantages compare the trajectories of one instance; with one of them every advantage is zero",
            "rollout.n=4",
        )


@rule_about(Part.trainer)
def informative_instances(config: Config, host: Host) -> Iterator[Finding]:
    rollout = config.rollout
    key = "rollout.instances"
    off = "rollout.instances=uniform"
    if rollout.instances is not InstanceChoice.informative:
        return
    if config.algo.advantage in COMPARES_NOTHING:
        if not is_foreign(config, ExtensionKind.advantage):
            words = f"algo={config.algo.name} compares nothing in a group: one that is solved throughout teaches, too"
            yield warning("informative", key, words, off)
        return
    epoch = trained_instances(config.env, host.read_text) / max(1, rollout.prompts_per_step)
    if epoch > 4 * rollout.pass_rate_half_life_steps:
        yield warning(
            "informative",
            "rollout.pass_rate_half_life_steps",
            f"an epoch takes {epoch:.0f} steps: what was seen of an instance has faded when it comes again",
            f"rollout.pass_rate_half_life_steps={epoch:.0f}, or {off}",
        )


@rule_about(Part.rollouts)
def one_group_size(config: Config, _: Host) -> Iterator[Finding]:
    given = config.env.num_trajectories
    n = config.rollout.n
    if given != n:
        yield error(
            "num_trajectories",
            "env.num_trajectories",
            f"rollout.n={n} says otherwise; both mean trajectories of one instance",
            "set rollout.n only; env.num_trajectories follows it",
        )


@rule_about(Part.trainer)
def mini_batch(config: Config, _: Host) -> Iterator[Finding]:
    prompts = config.rollout.prompts_per_step
    mini = config.trainer.prompts_per_mini_batch
    if mini >= 1 and prompts >= 1 and prompts % mini:
        near = [size for size in divisors_of(prompts) if size <= mini][-1]
        yield error(
            "mini_batch",
            "trainer.prompts_per_mini_batch",
            f"does not divide rollout.prompts_per_step={prompts}: the last update of a step would be smaller",
            f"trainer.prompts_per_mini_batch={near}, or rollout.prompts_per_step={nearest_multiples(prompts, mini)}",
        )


@rule_about(Part.trainer)
def mini_batch_over_ranks(config: Config, _: Host) -> Iterator[Finding]:
    trajectories = trajectories_per_mini_batch(config)
    ranks = data_parallel(config.layout)
    if trajectories % ranks:
        yield error(
            "mini_batch_ranks",
            "trainer.prompts_per_mini_batch",
            f"{trajectories} trajectories of a mini-batch cannot be shared evenly by {ranks} data-parallel ranks",
            f"make trainer.prompts_per_mini_batch * rollout.n a multiple of {ranks}",
        )


def _suggest_lengths(positions: int) -> str:
    """Returns lengths that satisfy `first_turn` and `model_length`."""
    lengths = {"max_trajectory": positions, "max_prompt": positions // 2, "max_turn": positions // 4}
    return " ".join(f"rollout.{name}_tokens={tokens}" for name, tokens in lengths.items())


@rule_about(Part.rollouts)
def first_turn_fits(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    needed = rollout.max_prompt_tokens + rollout.max_turn_tokens
    positions = config.model.max_position_embeddings
    if needed > rollout.max_trajectory_tokens:
        fix = f"rollout.max_trajectory_tokens={needed}, or a smaller rollout.max_turn_tokens"
        yield error(
            "first_turn",
            "rollout.max_trajectory_tokens",
            f"a prompt of {rollout.max_prompt_tokens} and a turn of {rollout.max_turn_tokens} tokens need {needed}",
            fix if needed <= positions else _suggest_lengths(positions),
        )


@rule_between(Part.engines, Part.rollouts)
def engine_length(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.max_trajectory_tokens > config.engine.max_model_len:
        yield error(
            "engine_length",
            "engine.max_model_len",
            f"shorter than rollout.max_trajectory_tokens={config.rollout.max_trajectory_tokens}: "
            "long trajectories would die in the engine",
            f"rollout.max_trajectory_tokens={config.engine.max_model_len}, or leave engine.max_model_len out",
        )


@rule_about(Part.engines)
def model_length(config: Config, _: Host) -> Iterator[Finding]:
    positions = config.model.max_position_embeddings
    rollout = config.rollout
    if config.engine.max_model_len > positions:
        fix = f"rollout.max_trajectory_tokens={positions} (engine.max_model_len follows it)"
        fits = rollout.max_prompt_tokens + rollout.max_turn_tokens <= positions  # otherwise `first_turn` refuses it
        yield error(
            "model_length",
            "engine.max_model_len",
            f"{config.model.name} has {positions} positions",
            fix if fits else _suggest_lengths(positions),
        )


@rule_about(Part.trainer)
def micro_batch_holds_one(config: Config, _: Host) -> Iterator[Finding]:
    cap = config.trainer.max_tokens_per_micro_batch
    longest = config.rollout.max_trajectory_tokens
    share = -(-longest // max(1, config.layout.sequence_parallel))
    if 0 < cap < share:
        yield error(
            "micro_batch",
            "trainer.max_tokens_per_micro_batch",
            f"one trajectory of {longest} tokens puts {share} on each GPU "
            f"(layout.sequence_parallel={config.layout.sequence_parallel})",
            f"trainer.max_tokens_per_micro_batch={share}",
        )


@rule_about(Part.rollouts)
def compaction_lengths(config: Config, _: Host) -> Iterator[Finding]:
    """Finds a trigger that the first prompt reaches, or after which no summary fits."""
    rollout = config.rollout
    if rollout.compaction is CompactionKind.none:
        return
    trigger = compaction_tokens(rollout)
    limit = rollout.max_trajectory_tokens
    lowest = math.ceil(100 * (rollout.max_prompt_tokens + 1) / limit) / 100
    summary_tokens = rollout.max_turn_tokens + len(rollout.compaction_request) // _REQUEST_CHARS_PER_TOKEN
    highest = math.floor(100 * (limit - summary_tokens) / limit) / 100
    if trigger <= rollout.max_prompt_tokens:
        yield error(
            "compaction_trigger",
            "rollout.compaction_trigger",
            f"a first prompt may have {rollout.max_prompt_tokens} tokens (rollout.max_prompt_tokens) and so reach "
            f"the {trigger} tokens from which on a conversation is compacted",
            f"rollout.compaction_trigger={lowest:g}, or a smaller rollout.max_prompt_tokens",
        )
    elif rollout.compaction is CompactionKind.summary and limit - trigger < summary_tokens:
        yield error(
            "compaction_trigger",
            "rollout.compaction_trigger",
            f"from {trigger} tokens on {limit - trigger} are left of rollout.max_trajectory_tokens, and a summary and "
            f"the words that ask for it may have {summary_tokens}",
            f"rollout.compaction_trigger={max(highest, 0.01):g}, or a smaller rollout.max_turn_tokens",
        )


@rule_about(Part.rollouts)
def compaction_summary(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.compaction is not CompactionKind.summary:
        return
    if not rollout.compaction_request.strip():
        words = "these words ask the policy for a summary, and there are none"
        yield error("compaction_request", "rollout.compaction_request", words, "leave rollout.compaction_request out")
    if rollout.max_turn_tokens < _LEAST_SUMMARY_TOKENS:
        yield warning(
            "compaction_summary",
            "rollout.max_turn_tokens",
            "a summary has no more tokens than this, and a summary that is cut is rejected",
            f"rollout.max_turn_tokens={_LEAST_SUMMARY_TOKENS}, or rollout.compaction=window",
        )


@rule_about(Part.rollouts)
def total_tokens(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if 0 < rollout.max_total_tokens < rollout.max_trajectory_tokens:
        yield error(
            "total_tokens",
            "rollout.max_total_tokens",
            "limits all segments of an attempt together, and one alone may have "
            f"rollout.max_trajectory_tokens={rollout.max_trajectory_tokens}",
            "rollout.max_total_tokens=0, which is no limit",
        )


@rule_between(Part.rollouts, Part.trainer)
def segments_overlong(config: Config, _: Host) -> Iterator[Finding]:
    """Finds a charge for length where it would not be that of one conversation."""
    if config.agent.delegate.depth and config.algo.overlong_share > 0:
        yield error(
            "delegate_overlong",
            "algo.overlong_share",
            "charges an attempt that comes near to rollout.max_trajectory_tokens, and its sub-agents count in its "
            "length, though each has a context of its own",
            "algo.overlong_share=0, or agent.delegate.depth=0",
        )
    if config.rollout.compaction is not CompactionKind.none and config.algo.overlong_share > 0:
        yield error(
            "compaction_overlong",
            "algo.overlong_share",
            "charges an attempt that comes near to rollout.max_trajectory_tokens, and a compacted one goes on there",
            "algo.overlong_share=0, or rollout.compaction=none",
        )
