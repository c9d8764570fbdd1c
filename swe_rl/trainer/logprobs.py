"""Computes the log-probabilities of trained tokens under a causal language model.

Invariants:
- Logits are divided by the sampling temperature and normalised in float32, as the engine reports them.
- The output head runs at trained positions only; with large vocabularies in chunks that are recomputed in the backward
  pass, so its memory is bounded.
- The model's layers give hidden states, and its own head gives logits (output_head.py).
- Logits exist for at most `MAX_CHUNK_LOGITS` values at once, in the forward and in the backward pass; the backward
  pass computes them again.
- The head's gradient is summed over the chunks in float32 and rounded once.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swe_rl.trainer.batching import MicroBatch
from swe_rl.trainer.output_head import Head, layers_of, output_head

# Logits of one chunk take 512 MiB in float32. A vocabulary of 150,000 leaves about 900 tokens a chunk, enough to keep
# the product with the head fast.
MAX_CHUNK_LOGITS = 2**27


def token_logprobs(
    model: nn.Module, batch: MicroBatch, temperature: float, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability and the entropy (nats) of each trained token, both float32 [trained tokens].

    The entropy carries a gradient only where asked for.
    """
    hidden = _hidden_states(model, batch.input_ids)
    hidden = hidden.reshape(-1, hidden.shape[-1])[batch.hidden_index]
    return own_logprobs(model, hidden, batch.targets, temperature, entropy_grad)


def own_logprobs(
    model: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Returns what `token_logprobs` does, of hidden states [tokens, hidden], by the model's own head."""
    head = output_head(model)
    rows = max(1, MAX_CHUNK_LOGITS // _vocab_size(model.get_submodule("lm_head")))
    if hidden.shape[0] <= rows:
        return _head_logprobs(head, hidden, targets, temperature, entropy_grad)
    parts = [
        checkpoint(_head_logprobs, head, h, t, temperature, entropy_grad, use_reentrant=False)
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def token_values(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Returns what a critic's `value_head` says where each trained token is predicted from, float32
    [trained tokens].
    """
    hidden = _hidden_states(model, batch.input_ids)
    hidden = hidden.reshape(-1, hidden.shape[-1])[batch.hidden_index]
    return scalar_outputs(hidden, model.get_parameter("value_head.weight"))


def scalar_outputs(hidden: Tensor, weight: Tensor) -> Tensor:
    """Returns hidden [tokens, hidden] under a head [1, hidden], in float32 [tokens]."""
    # There is no view here: hooks of sharded modules get lost on one.
    return (hidden.float() @ weight.float().t()).sum(dim=-1)


def _hidden_states(model: nn.Module, input_ids: Tensor) -> Tensor:
    # No attention mask and no positions: with padding on the right they say nothing that causality does not, and
    # without them scaled_dot_product_attention takes its fused causal kernel.
    output = layers_of(model)(input_ids=input_ids, attention_mask=None, position_ids=None, use_cache=False)
    states: Tensor = output[0]
    return states


def _vocab_size(head: nn.Module) -> int:
    weight = head.get_parameter("weight")
    return int(weight.shape[0])


def _head_logprobs(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = normaliser - (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return logprobs, entropy if entropy_grad else entropy.detach()


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_grad: bool = False,
    float32_head: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability and the entropy of `targets` [tokens] under the head `weight` [vocab, hidden].

    `hidden` is [tokens, hidden]. Both results are float32 [tokens], in nats; the entropy carries a gradient only where
    asked for. With `float32_head`, bfloat16 products are summed and kept in float32; without it each logit is rounded
    to the weights' type.
    """
    rows = max(1, MAX_CHUNK_LOGITS // weight.shape[0])
    result: tuple[Tensor, Tensor] = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, entropy_grad, rows, float32_head
    )
    return result


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        entropy_grad: bool,
        rows: int,
        float32_head: bool,
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        logprobs, entropy, normaliser = (hidden.new_empty(count, dtype=torch.float32) for _ in range(3))
        for part in _make_slices(count, rows):
            logits = _compute_logits(hidden[part], weight, temperature, float32_head)
            normaliser[part] = torch.logsumexp(logits, dim=-1)
            logprobs[part] = logits.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1) - normaliser[part]
            probabilities = (logits - normaliser[part].unsqueeze(-1)).exp_()
            entropy[part] = normaliser[part] - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.temperature = temperature
        ctx.entropy_grad = entropy_grad
        ctx.rows = rows
        ctx.float32_head = float32_head
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Computes d log p(t) / d z = onehot(t) - p and d H / d z = -p (log p + H), for logits z already divided."""
        hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        # Chunks of bfloat16 gradients would round at each sum, and the head's gradient would depend on the size of a
        # chunk.
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros_like(weight, dtype=torch.float32)
        for part in _make_slices(hidden.shape[0], ctx.rows):
            logits = _compute_logits(hidden[part], weight, ctx.temperature, ctx.float32_head)
            log_p = logits.sub_(normaliser[part].unsqueeze(-1))
            d_logprobs = gradients[0][part].unsqueeze(-1)
            factor = -d_logprobs
            if ctx.entropy_grad:
                factor = factor - gradients[1][part].unsqueeze(-1) * (log_p + entropy[part].unsqueeze(-1))
            d_logits = log_p.exp_().mul_(factor)
            d_logits.scatter_add_(-1, targets[part].unsqueeze(-1), d_logprobs.to(d_logits.dtype))
            d_logits = d_logits.div_(ctx.temperature).to(weight.dtype)
            d_hidden[part] = d_logits @ weight
            # A head that is frozen below an adapter needs no gradient.
            if d_weight is not None:
                _add_product(d_weight, d_logits.t(), hidden[part])
        return d_hidden, None if d_weight is None else d_weight.to(weight.dtype), None, None, None, None, None


def _make_slices(count: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _compute_logits(hidden: Tensor, weight: Tensor, temperature: float, float32_head: bool) -> Tensor:
    """Returns the logits in float32. A bfloat16 logit near 20 is rounded to a multiple of 1/8, and a log-probability
    with it.
    """
    if weight.dtype is torch.float32 or not float32_head:
        logits = (hidden @ weight.t()).float()
    elif weight.is_cuda and _sums_in_float32(weight.device, weight.dtype):
        logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    else:  # exact, too, for a converted copy of the head
        logits = hidden.float() @ weight.float().t()
    if temperature == 1.0:
        return logits
    return logits.div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds left @ right to `total` (float32), without a rounded copy of the product where the GPU can."""
    if left.dtype is torch.float32:
        total.addmm_(left, right)
    elif left.is_cuda and _sums_in_float32(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.add_(left @ right)


@lru_cache(maxsize=8)
def _sums_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether this torch multiplies `dtype` into a float32 sum on this GPU; older ones refuse."""
    ones = torch.ones(16, 16, device=device, dtype=dtype)
    total = torch.zeros(16, 16, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 16.0).all())
