"""Supervised warm start: cross-entropy on the masked tokens of demonstrations.

Invariants:
- The mean is over all masked tokens of the batch, whatever the micro-batches.
- Same batching, log-probabilities and guarded optimizer as in reinforcement learning.
"""

from collections.abc import Sequence

import torch
from torch import nn

from swe_rl.trainer.batching import MicroBatch, micro_batches
from swe_rl.trainer.logprobs import token_logprobs
from swe_rl.trainer.optimizer import Decay, Optimizer, decay_factor, torch_threads
from swe_rl.trainer.protocol import TrainerError


class SupervisedTrainer:
    """Changes `model` in place; one `step` is one AdamW update with the learning rate of the schedule."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        warmup_steps: int,
        total_steps: int,
        grad_clip: float,
        pad_token_id: int,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        decay: Decay = Decay.cosine,
        max_tokens_per_micro_batch: int = 16384,
        num_threads: int = 1,
    ) -> None:
        self.model = model.eval()
        self.steps_done = 0
        self._optimizer = Optimizer(model, lr=lr, weight_decay=weight_decay, betas=betas, grad_clip=grad_clip)
        self._peak_lr, self._warmup_steps, self._total_steps, self._decay = lr, warmup_steps, total_steps, decay
        self._pad_token_id, self._max_tokens = pad_token_id, max_tokens_per_micro_batch
        self._num_threads = num_threads

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._peak_lr * decay_factor(self.steps_done, self._warmup_steps, self._total_steps, self._decay)

    def step(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
        """One update on (token ids, loss mask) pairs; returns the loss before it, in nats per masked token.

        Rows without a masked token are ignored. Raises TrainerError where no row has one, where a row's first token
        is masked in, or where the lengths differ.
        """
        kept = [row for row in rows if any(row[1])]
        for ids, mask in kept:
            _check(ids, mask)
        if not kept:
            raise TrainerError(f"None of the {len(rows)} demonstrations of this step has a token to learn from.")
        with torch_threads(self._num_threads):
            loss = self._update(micro_batches(kept, self._max_tokens, self._pad_token_id, self._device))
        self.steps_done += 1
        return loss

    def _update(self, batches: list[MicroBatch]) -> float:
        tokens = sum(batch.targets.numel() for batch in batches)
        total = 0.0
        for batch in batches:
            loss = -token_logprobs(self.model, batch, 1.0)[0].sum() / tokens
            loss.backward()
            total += float(loss.detach())
        self._optimizer.apply(self.lr)
        return total

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def _check(ids: Sequence[int], mask: Sequence[int]) -> None:
    if len(ids) != len(mask):
        raise TrainerError(f"A demonstration has {len(ids)} tokens, but {len(mask)} mask entries.")
    if mask[0]:
        raise TrainerError("A demonstration's first token is masked in, but nothing predicts it.")
