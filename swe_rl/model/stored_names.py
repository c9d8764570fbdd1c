"""Finds how the checkpoints of a family name and cut what a model has in memory, by transformers' own conversion.

transformers converts a checkpoint's tensors while it loads them, and back while it saves them. The way back is walked
here once with tensors that have no memory: what comes out are views of what went in, and these say which rows have
which name. So weights leave for engines and folders tensor by tensor, and no family is known by its name.

Invariants:
- The fast families keep the rule of `experts.expert_parts`, which needs no model.
- A conversion that does more than cut and rename is refused by the tensor's name: a view cannot undo it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.errors import UserError
from swe_rl.model.experts import StoredLayout, StoredPart, expert_parts, hub_shapes

_layouts: "WeakKeyDictionary[nn.Module, StoredLayout]" = WeakKeyDictionary()


class StoredNamesError(UserError):
    """The checkpoints of this family hold tensors that are no views of those in memory."""


class _Traced(Tensor):
    """A tensor without memory whose cuts stay views: transformers copies them to make them contiguous."""

    def contiguous(self, *_: Any, **__: Any) -> "_Traced":
        return self


def stored_names(causal_lm: nn.Module, stored: Collection[str] = ()) -> StoredLayout:
    """Returns the layout of the checkpoint that a model of transformers was loaded from, or would be saved as.

    `stored` are the names in its files, where the model was made without them. Raises StoredNamesError.
    """
    config = getattr(causal_lm, "config", None)
    if getattr(config, "model_type", FAST_ARCHITECTURES[0]) in FAST_ARCHITECTURES:
        return expert_parts
    if stored or causal_lm not in _layouts:
        _layouts[causal_lm] = _table_of(causal_lm, stored)
    return _layouts[causal_lm]


def model_without_weights(folder: Path) -> Any:
    """Returns the model of a folder's config.json without memory; None of a fast family, which needs no model here."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if shape.model_type in FAST_ARCHITECTURES:
        return None
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(shape)


def untrained_names(causal_lm: nn.Module, layout: StoredLayout) -> set[str]:
    """Returns what a checkpoint holds beside parameters: buffers, such as the bias of a router's choice."""
    parameters = {name for name, _ in causal_lm.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in causal_lm.state_dict().items() if name not in parameters}
    return {stored for name, tensor in buffers.items() for stored, _ in hub_shapes(name, tensor.shape, layout)}


def _table_of(causal_lm: Any, stored: Collection[str]) -> StoredLayout:
    table = _parts(causal_lm, changes_prefixes=False)
    if stored:
        # The text model of a multimodal checkpoint has one word more in its tensors' names there.
        prefixed = _parts(causal_lm, changes_prefixes=True)
        table = max(table, prefixed, key=lambda candidate: len(_stored_in(candidate) & set(stored)))
    changed = {name: parts for name, parts in table.items() if [part.name for part in parts] != [name]}

    def layout(name: str, _: object) -> tuple[StoredPart, ...]:
        return changed.get(name, ())

    return layout


def _stored_in(table: Mapping[str, tuple[StoredPart, ...]]) -> set[str]:
    return {part.name for parts in table.values() for part in parts}


def _parts(causal_lm: Any, *, changes_prefixes: bool) -> dict[str, tuple[StoredPart, ...]]:
    """Returns the parts of each tensor in memory."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    kept = getattr(causal_lm, "_weight_conversions", None)
    traced: dict[str, torch.Tensor] = {
        _plain(name): torch.empty(tensor.shape, device="meta").as_subclass(_Traced)
        for name, tensor in causal_lm.state_dict().items()
        if not _is_ours(name)
    }
    sources = {tensor.untyped_storage()._cdata: name for name, tensor in traced.items()}
    if changes_prefixes:
        causal_lm._weight_conversions = get_model_conversion_mapping(causal_lm, add_legacy=False)
    try:
        stored = revert_weight_conversion(causal_lm, traced)
    finally:
        causal_lm._weight_conversions = kept
    parts: dict[str, list[StoredPart]] = {name: [] for name in traced}
    for name, tensor in stored.items():
        source = sources.get(tensor.untyped_storage()._cdata)
        if source is None:
            raise StoredNamesError(_more_than_cut(name, causal_lm))
        part = _part(name, tensor, traced[source])
        if part is None:
            raise StoredNamesError(_more_than_cut(name, causal_lm))
        parts[source].append(part)
    return {name: tuple(of_tensor) for name, of_tensor in parts.items()}


def _part(name: str, view: Tensor, whole: Tensor) -> StoredPart | None:
    """Returns which rows of `whole` a view has; None where it has something else."""
    offset = view.storage_offset()
    if view.shape[1:] == whole.shape[1:] and view.stride() == whole.stride():
        row = 1
        if whole.ndim:
            row = whole.stride(0)
        start = offset // row
        part = StoredPart(name, None, start, start + (view.shape[0] if view.ndim else 1))
    elif view.ndim and view.shape[1:] == whole.shape[2:] and view.stride() == whole.stride()[1:]:
        expert = offset // whole.stride(0)
        start = offset % whole.stride(0) // whole.stride(1)
        part = StoredPart(name, expert, start, start + view.shape[0])
    else:
        return None
    return part


def _more_than_cut(name: str, causal_lm: Any) -> str:
    return (
        f"The checkpoints of a `{causal_lm.config.model_type}` model hold `{name}` in a form that is neither a part "
        "nor another name of a tensor in memory, so its weights cannot be handed on one by one. Choose another model."
    )


def _plain(name: str) -> str:
    return name.replace(".base_layer.", ".")


def _is_ours(name: str) -> bool:
    return ".lora_" in name or name.startswith("value_head.")
