"""The loss of a token by somebody's own formula, in place of `algo.policy_loss`.

Invariants:
- All is per token, in one order; a micro-batch has any number of them, also none, and says nothing of the others.
- How tokens become the loss of a mini-batch (`algo.loss_aggregation`), corrections, KL and entropy stay the trainer's.
- The formula is made once in each process that trains, and has no state that ranks would have to share.
"""

import torch
from torch import Tensor

from swe_rl.algo.protocol import Loss, LossTokens
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AlgoConfig, LossConfig
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import ExtensionFailure, failure, make


class ForeignLoss:
    def __init__(self, loss: Loss, maker: Foreign) -> None:
        self.needs_rollout_logprobs = bool(getattr(loss, "needs_rollout_logprobs", False))
        self.needs_all_rows = bool(getattr(loss, "needs_all_rows", False))
        self._loss = loss
        self._maker = maker

    def loss(self, tokens: LossTokens) -> Tensor:
        """Raises ExtensionFailure."""
        try:
            loss = self._loss.loss(tokens)
        except SweRlError:
            raise
        except Exception as error:
            raise ExtensionFailure(failure(self._maker, "loss", error)) from error
        wanted = tuple(tokens.logprobs.shape)
        if not isinstance(loss, Tensor) or tuple(loss.shape) != wanted:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ExtensionFailure(
                f"{self._maker}: its method loss must return a tensor of shape {wanted}, not {shape}"
            )
        if not bool(torch.isfinite(loss.detach()).all()):
            raise ExtensionFailure(f"{self._maker}: its method loss returned a number that is not finite")
        if tokens.logprobs.requires_grad and not loss.requires_grad:
            if not bool(loss.count_nonzero()):  # none of these tokens teaches it anything
                return loss + 0.0 * tokens.logprobs
            raise ExtensionFailure(
                f"{self._maker}: its method loss returned a tensor without a gradient: compute it from tokens.logprobs"
            )
        return loss


def make_loss(config: LossConfig, algo: AlgoConfig) -> ForeignLoss | None:
    """None: `algo.policy_loss` decides. Raises UserError."""
    loss, maker = make(ExtensionKind.loss, config, {"config": algo}, {"default": "swe_rl.algo.foreign.loss.no_loss"})
    return None if maker is None else ForeignLoss(loss, maker)


def no_loss() -> None:
    """Of loss=default: `algo.policy_loss` decides."""
