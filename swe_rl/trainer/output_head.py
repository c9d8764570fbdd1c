"""From hidden states to logits, as the model itself does it.

Some families scale their logits (Granite, Cohere), some bend them towards a bound (Gemma), and the next family will do
something else. No table of names knows them all. So the model's own `forward` is asked: once, whether it does more than
its `lm_head`; if it does, each time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from swe_rl.config.choices import FAST_ARCHITECTURES

Head = Callable[[Tensor], Tensor]

_PROBED_TOKENS = 8
# Relative to the largest logit. Equal computations differ by the rounding of another shape; a treatment of the logits
# that nobody can see in eight tokens does not change a loss either.
_EQUAL = 1e-4
_heads: "WeakKeyDictionary[nn.Module, Head]" = WeakKeyDictionary()


def output_head(model: nn.Module) -> Head:
    """Returns a function from hidden states [rows, hidden] to logits [rows, vocab] that carries gradients.

    `model` is a causal language model of transformers.
    """
    if not _needs_probe(model):
        return model.get_submodule("lm_head")
    if model not in _heads:
        head = _PlainHead(model)
        if _does_no_more(model, head):
            _heads[model] = head
        else:
            _heads[model] = _OwnHead(model)
    return _heads[model]


def probe_head(model: nn.Module) -> None:
    """Probes the head of a model where that is needed, before anything hooks the model's parts."""
    if _needs_probe(model):
        output_head(model)


def _needs_probe(model: nn.Module) -> bool:
    """Tells whether a model is of a family whose head is not known. A probe's pass costs a few milliseconds."""
    kind = getattr(getattr(model, "config", None), "model_type", FAST_ARCHITECTURES[0])
    return kind not in FAST_ARCHITECTURES


def layers_of(model: nn.Module) -> nn.Module:
    """Returns what makes hidden states from ids; transformers calls it `backbone` in a few families."""
    return model.get_submodule(getattr(model, "base_model_prefix", "model"))


class _PlainHead:
    """The model's `lm_head` for hidden states of any precision.

    State-space families (Mamba, Nemotron-H) keep their sums in float32 where the weights are in bfloat16, and their
    `forward` rounds them before the head.
    """

    def __init__(self, model: nn.Module) -> None:
        self._head: Any = model.get_submodule("lm_head")

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden.to(self._head.weight.dtype))
        return logits


class _OwnHead:
    """The model's `forward` with its layers left out."""

    def __init__(self, model: nn.Module) -> None:
        # A strong one would keep the model in `_heads` for ever.
        self._reference = ref(model)

    def __call__(self, hidden: Tensor) -> Tensor:
        model: Any = self._reference()
        assert model is not None, "whoever trains a model keeps it"
        with _layers_give(layers_of(model), hidden[None]):
            output = model(input_ids=hidden.new_zeros((1, hidden.shape[0]), dtype=torch.int64), use_cache=False)
        logits: Tensor = output.logits[0]
        return logits


@contextmanager
def _layers_give(base: nn.Module, hidden: Tensor) -> Iterator[None]:
    """Inside of the block, `base` returns `hidden` [1, rows, hidden] for any input."""
    from transformers.modeling_outputs import MoeModelOutputWithPast

    named: Any = base
    states: Any = hidden  # the class wants a FloatTensor, which a checker knows where torch is installed only
    named.forward = lambda *_, **__: MoeModelOutputWithPast(last_hidden_state=states)
    try:
        yield
    finally:
        del named.forward


@torch.no_grad()
def _does_no_more(model: nn.Module, head: Head) -> bool:
    device = next(model.parameters()).device
    ids = torch.arange(_PROBED_TOKENS, device=device)[None]
    hidden = layers_of(model)(input_ids=ids, use_cache=False)[0]
    logits = model(input_ids=ids, use_cache=False).logits
    difference = (head(hidden) - logits).abs().max()
    return bool(difference <= _EQUAL * logits.abs().max())
