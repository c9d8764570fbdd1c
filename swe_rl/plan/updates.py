"""This module tells in numbers and in words what the updates of `job=sft` are.

Invariants:
- Without the data nobody knows how many updates passes over them take: words stand for that number, and no time follows
  from it.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.facts.warm_start import imitates_data, longest_example_tokens, updates_of


def knows_updates(config: Config) -> bool:
    """Tells whether the number of updates is known without reading the data."""
    return not imitates_data(config.sft) or config.sft.steps is not None


def size_of_updates(config: Config) -> dict[str, Any]:
    """Returns rows of a plan: how many updates there are, and how large they are."""
    sft = config.sft
    updates = updates_of(config)
    if not imitates_data(sft):
        return {"updates": updates.total_steps, "tokens_per_update_at_least": sft.tokens_per_batch}
    passes = f"as many as sft.epochs={sft.epochs} passes take"
    return {
        "updates": updates.steps if sft.steps else passes,
        "conversations_per_update": sft.examples_per_batch,
        "tokens_per_conversation_at_most": longest_example_tokens(config),
    }


def describe_updates(batch: Mapping[str, Any]) -> str:
    """Returns words for the rows of `size_of_updates`."""
    if "conversations_per_update" in batch:
        size = f"updates of {batch['conversations_per_update']} conversations"
        amount = batch["updates"]
        if isinstance(amount, int):
            return f"{amount} {size}"
        return f"{size}, {amount}"
    return f"{batch['updates']} updates of {batch['tokens_per_update_at_least']} tokens"


def describe_imitation(config: Config) -> str:
    """Returns words for the work of a job, for the first lines of its run."""
    sft = config.sft
    if not imitates_data(sft):
        updates = updates_of(config)
        return f"{updates.steps} + {updates.beginner_steps} updates of {sft.tokens_per_batch} tokens"
    if sft.steps:
        amount = f"{sft.steps} updates"
    else:
        amount = f"{sft.epochs} passes, updates"
    return f"{amount} of {sft.examples_per_batch} conversations"
