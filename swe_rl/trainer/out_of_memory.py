"""What is said where a GPU's memory runs out in a step of training.

Invariants:
- It is an error of ours: the same rows would need as much again, so no rank is started anew for it.
- Each key that the message names leaves the loss and the gradient as they are, and a run goes on with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from swe_rl.config.schema import TrainerConfig
from swe_rl.trainer.errors import TrainerError


@contextmanager
def out_of_memory_named(config: TrainerConfig, what: str) -> Iterator[None]:
    """`what`: a step of the trainer, in words. Raises TrainerError in place of torch's OutOfMemoryError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).split(". ")[0].rstrip(".")
        raise TrainerError(
            f"The trainer ran out of memory in {what}: {reason}. Nothing of this step is recorded or saved. Go on from "
            f"the newest checkpoint with trainer.resume=auto and less memory: {', or '.join(_ways_out(config))}."
        ) from error


def _ways_out(config: TrainerConfig) -> Iterator[str]:
    tokens = config.max_tokens_per_micro_batch
    yield f"trainer.max_tokens_per_micro_batch={max(1, tokens // 2)} (it is {tokens})"
    if not config.activation_checkpointing:
        yield "trainer.activation_checkpointing=true"
    if not config.offload_optimizer:
        yield "trainer.offload_optimizer=true"
    if config.activation_checkpointing or config.offload_optimizer:
        yield "more ranks (layout.trainer_gpus, layout.sequence_parallel)"
