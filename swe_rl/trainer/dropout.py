"""Switches training mode on without what it draws at random.

Invariant: a model that is trained computes what the engine's copy computed: with dropout two passes over the same row
differ, so that no ratio is 1, and engine and trainer seem to disagree. So every dropout of a model is off in the
trainer of every job, whatever its config.json says: attention's, those that are modules (of embeddings, residuals,
hidden layers, adapters), and the noise of a mixture's router.
"""

from torch import nn

# transformers gives such names to the probabilities and widths that it reads in each forward pass.
_RANDOM = ("drop", "jitter")


def train_without_dropout(model: nn.Module, on: bool) -> None:
    """Calls `model.train(on)` and leaves nothing to chance."""
    model.train(on)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and any(part in name for part in _RANDOM):
                setattr(module, name, 0.0)
