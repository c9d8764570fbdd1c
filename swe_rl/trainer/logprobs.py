"""Log-probabilities of the trained tokens under a causal language model.

Invariants:
- Logits are divided by the sampling temperature and normalised in float32, as the engine reports them.
- The output head runs at trained positions only; with large vocabularies in chunks that are recomputed in the backward
  pass, so its memory is bounded.
- Of the model only `model.model(input_ids) -> hidden states` and `model.lm_head` are used.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swe_rl.trainer.batching import MicroBatch

MAX_CHUNK_LOGITS = 2**27  # 512 MiB of float32


def token_logprobs(
    model: nn.Module, batch: MicroBatch, temperature: float, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats) of each trained token, both float32 of shape [trained tokens].

    The entropy carries a gradient only where asked for.
    """
    hidden = _hidden_states(model, batch.input_ids)
    hidden = hidden.reshape(-1, hidden.shape[-1])[batch.hidden_index]
    head = model.get_submodule("lm_head")
    rows = max(1, MAX_CHUNK_LOGITS // _vocab_size(head))
    if hidden.shape[0] <= rows:
        return _head_logprobs(head, hidden, batch.targets, temperature, entropy_grad)
    parts = [
        checkpoint(_head_logprobs, head, h, t, temperature, entropy_grad, use_reentrant=False)
        for h, t in zip(hidden.split(rows), batch.targets.split(rows), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _hidden_states(model: nn.Module, input_ids: Tensor) -> Tensor:
    # No attention mask and no positions: with padding on the right they say nothing that causality does not, and
    # without them scaled_dot_product_attention takes its fused causal kernel.
    output = model.get_submodule("model")(input_ids=input_ids, attention_mask=None, position_ids=None, use_cache=False)
    states: Tensor = output[0]
    return states


def _vocab_size(head: nn.Module) -> int:
    weight = head.get_parameter("weight")
    return int(weight.shape[0])


def _head_logprobs(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = normaliser - (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return logprobs, entropy if entropy_grad else entropy.detach()
