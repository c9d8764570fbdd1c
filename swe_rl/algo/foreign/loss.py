"""Takes the loss of a token by somebody's own formula, in place of `algo.policy_loss`.

Invariants:
- All is per token, in one order; a micro-batch has any number of them, also none, and says nothing of the others. What
  has to be known of a whole trajectory is summed by the trainer (`sequence_terms`).
- How tokens become the loss of a mini-batch (`algo.loss_aggregation`), corrections, KL and entropy stay the trainer's.
- The formula is made once in each process that trains, and has no state that ranks would have to share.
"""

import torch
from torch import Tensor

from swe_rl.algo.own_algorithm import Loss, LossTokens
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AlgoConfig, LossConfig
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import NOBODY, ExtensionFailure, failing_as, make_extension


class ForeignLoss:
    def __init__(self, loss: Loss, maker: Foreign) -> None:
        self.needs_rollout_logprobs = bool(getattr(loss, "needs_rollout_logprobs", False))
        self.needs_reference_logprobs = bool(getattr(loss, "needs_reference_logprobs", False))
        self.needs_all_rows = bool(getattr(loss, "needs_all_rows", False))
        self.needs_sequences = bool(getattr(loss, "needs_sequences", False))
        self._loss = loss
        self._maker = maker

    def loss(self, tokens: LossTokens) -> Tensor:
        """Returns the loss of each token, shape [tokens]. Raises ExtensionFailure."""
        loss = self._answer("loss", tokens)
        if tokens.logprobs.requires_grad and not loss.requires_grad:
            # Without a gradient `backward` would raise; none of these tokens teaches the formula anything, which is no
            # fault.
            if not bool(loss.count_nonzero()):
                return loss + 0.0 * tokens.logprobs
            raise ExtensionFailure(
                f"{self._maker}: its method loss returned a tensor without a gradient: compute it from tokens.logprobs"
            )
        return loss

    @torch.no_grad()
    def sequence_terms(self, tokens: LossTokens) -> Tensor:
        """Returns what the formula wants means of, shape [tokens]. Raises ExtensionFailure."""
        return self._answer("sequence_terms", tokens)

    def _answer(self, method: str, tokens: LossTokens) -> Tensor:
        with failing_as(ExtensionFailure, self._maker, method):
            answer = getattr(self._loss, method)(tokens)
        wanted = tuple(tokens.logprobs.shape)
        if not isinstance(answer, Tensor) or tuple(answer.shape) != wanted:
            if isinstance(answer, Tensor):
                shape = str(tuple(answer.shape))
            else:
                shape = type(answer).__name__
            raise ExtensionFailure(
                f"{self._maker}: its method {method} must return a tensor of shape {wanted}, not {shape}"
            )
        if not bool(torch.isfinite(answer.detach()).all()):
            raise ExtensionFailure(f"{self._maker}: its method {method} returned a number that is not finite")
        return answer


def make_loss(config: LossConfig, algo: AlgoConfig) -> ForeignLoss | None:
    """Returns the user's loss, or None if `algo.policy_loss` decides. Raises UserError."""
    loss, maker = make_extension(ExtensionKind.loss, config, {"config": algo}, NOBODY)
    if maker is None:
        return None
    return ForeignLoss(loss, maker)
